"""Recurrent cores: a window unrolled is its rows one by one, with episodes that begin within it."""

import haiku as hk
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from dm_env import specs

from troupe.agents.networks import recurrent
from troupe.agents.networks.transformer import gated_transformer

B, T, D, H = 3, 7, 4, 6
SPEC = specs.Array((D,), np.float32)
CORES = {
    "lstm": recurrent.lstm(H),
    "gru": recurrent.gru(H),
    "transformer": gated_transformer(H, num_layers=1, num_heads=2, memory_length=7),
}


def make_network(core, torso=None, head=None):
    """Compiled, and with parameters of numpy: what takes longest is compiling their draws."""
    made = recurrent.make_recurrent(
        SPEC,
        torso or (lambda x: jnp.tanh(hk.Linear(6)(x))),
        core,
        head or (lambda x: {"values": hk.Linear(2)(x)}),
    )

    def init(key):
        rng = np.random.default_rng(0)
        return jax.tree.map(
            lambda leaf: jnp.asarray(rng.normal(size=leaf.shape, scale=0.4), jnp.float32),
            jax.eval_shape(made.init, key),
        )

    return made._replace(
        init=init,
        unroll=jax.jit(made.unroll, static_argnums=4),
        step=jax.jit(made.step),
    )


@pytest.fixture(params=CORES, scope="module")
def network(request):
    return make_network(CORES[request.param])


@pytest.fixture
def rows():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(B, T, D)).astype(np.float32)
    first = np.zeros((B, T), bool)
    first[0, 0] = first[0, 3] = first[1, 5] = first[1, 6] = True
    return x, first


def states(network, seed=1, length=5):
    """As they are some steps into an episode."""
    x = np.random.default_rng(seed).normal(size=(B, length, D)).astype(np.float32)
    params = network.init(jax.random.key(seed))
    start = jax.tree.map(lambda leaf: jnp.stack([leaf] * B), network.initial_state)
    return network.unroll(params, x, start, np.zeros((B, length), bool))[1]


def close(actual, expected):
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6), actual, expected
    )


def test_a_window_unrolled_is_its_rows_one_by_one_with_resets(network, rows):
    x, first = rows
    params = network.init(jax.random.key(0))
    outputs, last = network.unroll(params, x, states(network), first)
    assert outputs["values"].shape == (B, T, 2)
    for b in range(B):
        state = jax.tree.map(lambda s, b=b: s[b], states(network))
        for t in range(T):
            if first[b, t]:
                state = network.initial_state
            output, state = network.step(params, x[b, t], state)
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


@pytest.mark.parametrize("length", [1, 3])
def test_a_memory_of_any_length_gives_the_same_unrolled_as_one_by_one(length):
    network = make_network(gated_transformer(H, num_layers=2, num_heads=3, memory_length=length))
    rng = np.random.default_rng(0)
    x = rng.normal(size=(B, 30, D)).astype(np.float32)
    first = rng.uniform(size=(B, 30)) < 0.1
    params = network.init(jax.random.key(0))
    outputs, last = network.unroll(params, x, states(network), first)
    state = states(network)
    for t in range(30):
        output, state = network.unroll(params, x[:, t : t + 1], state, first[:, t : t + 1])
        np.testing.assert_allclose(
            output["values"][:, 0], outputs["values"][:, t], rtol=1e-4, atol=1e-5
        )
    np.testing.assert_array_equal(state.held, last.held)
    np.testing.assert_allclose(state.rows, last.rows, rtol=1e-4, atol=1e-5)


def test_layers_one_by_one_compute_what_their_loop_computes():
    networks = [
        make_network(gated_transformer(H, num_layers=2, num_heads=3, memory_length=3, loop=loop))
        for loop in (True, False)
    ]
    x = np.random.default_rng(0).normal(size=(B, 5, D)).astype(np.float32)
    first = np.zeros((B, 5), bool)
    before = states(networks[0])
    params = networks[1].init(jax.random.key(0))
    layers = [params[f"transformer/layer_{i}"] for i in range(2)]
    stacked = {name: params[name] for name in params if "layer_" not in name}
    stacked["transformer"] = jax.tree.map(lambda *x: jnp.stack(x), *layers)
    assert jax.tree.structure(stacked) == jax.tree.structure(networks[0].init(jax.random.key(0)))
    ours, theirs = (
        network.unroll(given, x, before, first, 2)
        for network, given in zip(networks, (stacked, params), strict=True)
    )
    close(ours, theirs)


def test_a_transformer_sees_as_far_as_its_memories_reach_and_no_further():
    network = make_network(gated_transformer(H, num_layers=2, num_heads=1, memory_length=2))
    x = np.random.default_rng(0).normal(size=(1, 9, D)).astype(np.float32)
    params = network.init(jax.random.key(0))
    start = jax.tree.map(lambda leaf: leaf[None], network.initial_state)

    def last(x):
        return jnp.sum(network.unroll(params, x, start, np.zeros((1, 9)))[0]["values"][:, -1])

    reached = np.abs(jax.grad(last)(x)[0]).max(-1) > 0
    assert reached.tolist() == [False] * 4 + [True] * 5


def test_gates_hold_a_transformer_close_to_the_identity_at_first():
    core = gated_transformer(64, num_layers=1, num_heads=2, memory_length=4)
    made = recurrent.make_recurrent(SPEC, lambda x: x, core, lambda x: x)
    network = make_network(core, lambda x: x, lambda x: x)
    x = np.random.default_rng(0).normal(size=(1, 4, D)).astype(np.float32)
    params = network.init(jax.random.key(0))
    # Weights of the size that they have at first; of the draws only this is compiled.
    bias = jax.jit(lambda key: made.init(key)["transformer"]["gate_bias"])(jax.random.key(0))
    params["transformer"] |= {"gate_bias": bias}
    for name in ("gate_new", "gate_old", "up", "down", "query", "key", "value", "output"):
        params["transformer"][name] *= params["transformer"][name].shape[-2] ** -0.5 / 0.4
    start = jax.tree.map(lambda leaf: leaf[None], network.initial_state)
    outputs, _ = network.unroll(params, x, start, np.zeros((1, 4)))
    embedding = params["transformer/embedding"]
    embedded = x @ embedding["w"] + embedding["b"]
    correlation = np.corrcoef(np.ravel(outputs), np.ravel(embedded))[0, 1]
    assert correlation > 0.9


def test_nothing_crosses_the_start_of_an_episode(network, rows):
    x, first = rows
    params = network.init(jax.random.key(0))

    def later(x, state):
        return jnp.sum(network.unroll(params, x, state, first)[0]["values"][:, 5] ** 2)

    of_rows, of_state = jax.grad(later, argnums=(0, 1), allow_int=True)(x, states(network))
    norms = np.abs(of_rows).max(-1) > 0
    assert norms[0].tolist() == [False, False, False, True, True, True, False]
    assert norms[1].tolist() == [False] * 5 + [True, False]
    assert norms[2].tolist() == [True] * 6 + [False]
    for leaf in jax.tree.leaves(of_state):
        if leaf.dtype == np.float32:  # Counts have no gradient.
            moved = np.abs(leaf).reshape(B, -1).max(-1) > 0
            assert moved.tolist() == [False, False, True]


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


def test_a_deep_core_feeds_one_with_the_other(rows):
    x, first = rows
    cores = recurrent.gru(H), recurrent.lstm(4)
    network = make_network(recurrent.deep(cores), lambda x: x, lambda x: x)
    params = network.init(jax.random.key(0))
    zeros = jax.tree.map(lambda s: jnp.zeros((B, *s.shape)), network.initial_state)
    outputs, state = network.unroll(params, x, zeros, first)
    for core, before, after in zip(cores, zeros, state, strict=True):
        alone = make_network(core, lambda x: x, lambda x: x)
        x, expected = alone.unroll(params, x, before, first)
        close(after, expected)
    close(outputs, x)


def test_an_lstm_is_that_of_haiku(rows):
    x, first = rows
    network = make_network(recurrent.lstm(H), lambda x: x, lambda x: x)
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
    network = make_network(recurrent.gru(H), lambda x: x, lambda x: x)
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
