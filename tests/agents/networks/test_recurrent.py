"""Recurrent cores: a window unrolled is its rows one by one, with episodes that begin within it."""

import haiku as hk
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from dm_env import specs

from troupe.agents.networks import recurrent

B, T, D, H = 3, 7, 4, 5
SPEC = specs.Array((D,), np.float32)
CORES = {"lstm": recurrent.lstm, "gru": recurrent.gru}


@pytest.fixture(params=CORES)
def network(request):
    return recurrent.make_recurrent(
        SPEC,
        lambda x: jnp.tanh(hk.Linear(6)(x)),
        CORES[request.param](H),
        lambda x: {"values": hk.Linear(2)(x)},
    )


@pytest.fixture
def rows():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(B, T, D)).astype(np.float32)
    first = np.zeros((B, T), bool)
    first[0, 0] = first[0, 3] = first[1, 5] = first[1, 6] = True
    return x, first


def states(network, seed=1):
    rng = np.random.default_rng(seed)
    return jax.tree.map(
        lambda x: rng.normal(size=(B, *x.shape)).astype(np.float32), network.initial_state
    )


def close(actual, expected):
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6), actual, expected
    )


def test_a_window_unrolled_is_its_rows_one_by_one_with_resets(network, rows):
    x, first = rows
    params = network.init(jax.random.key(0))
    outputs, last = jax.jit(network.unroll)(params, x, states(network), first)
    assert outputs["values"].shape == (B, T, 2)
    step = jax.jit(network.step)
    for b in range(B):
        state = jax.tree.map(lambda s, b=b: s[b], states(network))
        for t in range(T):
            if first[b, t]:
                state = network.initial_state
            output, state = step(params, x[b, t], state)
            close(output["values"], outputs["values"][b, t])
        close(state, jax.tree.map(lambda s, b=b: s[b], last))


def test_two_halves_are_the_whole(network, rows):
    x, first = rows
    params = network.init(jax.random.key(0))
    whole, last = network.unroll(params, x, states(network), first)
    left, between = network.unroll(params, x[:, :1], states(network), first[:, :1])
    right, end = network.unroll(params, x[:, 1:], between, first[:, 1:])
    close(end, last)
    close(jnp.concatenate([left["values"], right["values"]], 1), whole["values"])


def test_nothing_crosses_the_start_of_an_episode(network, rows):
    x, first = rows
    params = network.init(jax.random.key(0))

    def later(x, state):
        return jnp.sum(network.unroll(params, x, state, first)[0]["values"][:, 5] ** 2)

    of_rows, of_state = jax.grad(later, argnums=(0, 1))(x, states(network))
    norms = np.abs(of_rows).max(-1) > 0
    assert norms[0].tolist() == [False, False, False, True, True, True, False]
    assert norms[1].tolist() == [False] * 5 + [True, False]
    assert norms[2].tolist() == [True] * 6 + [False]
    for leaf in jax.tree.leaves(of_state):
        assert (np.abs(leaf).max(-1) > 0).tolist() == [False, False, True]


def test_no_gradient_enters_a_burn_in_but_in_a_window_that_begins_an_episode(network, rows):
    x, first = rows
    params = network.init(jax.random.key(0))

    def last(x, burn_in):
        return jnp.sum(
            network.unroll(params, x, states(network), first, burn_in)[0]["values"][:, -1]
        )

    plain, burnt = (np.abs(jax.grad(last)(x, n)).max(-1) > 0 for n in (0, 4))
    assert float(last(x, 4)) == pytest.approx(float(last(x, 0)), rel=1e-6)
    np.testing.assert_array_equal(burnt[:2], plain[:2])
    assert plain[2].all()
    assert burnt[2].tolist() == [False] * 4 + [True] * 3


def test_an_lstm_is_that_of_haiku(rows):
    x, first = rows
    network = recurrent.make_recurrent(SPEC, lambda x: x, recurrent.lstm(H), lambda x: x)
    params = network.init(jax.random.key(0))
    ours = params["lstm"], params["lstm/input"]
    theirs = {
        "lstm/linear": {
            "w": jnp.concatenate([ours[1]["w"], ours[0]["w"]]),
            "b": ours[1]["b"] + 0.1,
        }
    }
    ours[1]["b"] = ours[1]["b"] + 0.1

    @hk.without_apply_rng
    @hk.transform
    def unroll(x, first):
        core = hk.ResetCore(hk.LSTM(H))
        return hk.dynamic_unroll(core, (x, first), core.initial_state(B), time_major=False)[0]

    names = unroll.init(jax.random.key(0), x, first)
    theirs = {next(iter(names)): theirs["lstm/linear"]}
    zeros = jax.tree.map(lambda s: jnp.zeros((B, *s.shape)), network.initial_state)
    close(network.unroll(params, x, zeros, first)[0], unroll.apply(theirs, x, first))


def test_a_gru_is_that_of_haiku(rows):
    x, first = rows
    network = recurrent.make_recurrent(SPEC, lambda x: x, recurrent.gru(H), lambda x: x)
    params = network.init(jax.random.key(0))

    @hk.without_apply_rng
    @hk.transform
    def unroll(x, first):
        core = hk.ResetCore(hk.GRU(H))
        return hk.dynamic_unroll(core, (x, first), core.initial_state(B), time_major=False)[0]

    (name,) = unroll.init(jax.random.key(0), x, first)
    theirs = {
        name: {
            "w_i": params["gru/input"]["w"],
            "w_h": params["gru"]["w"],
            "b": params["gru/input"]["b"],
        }
    }
    zeros = jnp.zeros((B, H))
    close(network.unroll(params, x, zeros, first)[0], unroll.apply(theirs, x, first))
