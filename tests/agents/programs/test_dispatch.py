"""The forms in which programs are dispatched compute the same."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from troupe.agents.programs import dispatch


@pytest.mark.parametrize("num_steps", [1, 3])
def test_fused_steps_are_the_steps_in_turn(num_steps):
    def step(state, batch):
        state = state * 0.5 + batch.sum()
        return state, {"state": state}

    batches = jnp.arange(2.0 * num_steps).reshape(num_steps, 2)
    state, output = jax.jit(dispatch.fuse(step, num_steps))(jnp.ones(()), batches)
    expected = jnp.ones(())
    for k in range(num_steps):
        expected, _ = step(expected, batches[k])
        assert float(output["state"][k]) == pytest.approx(float(expected))
    assert float(state) == pytest.approx(float(expected))


def test_what_is_small_computes_the_same_in_turn():
    """Of parts that do not need one another, which would be shared out."""

    def draw(words, weights):
        key = jax.random.wrap_key_data(words)
        return jax.random.normal(key, (4,)) + jnp.tanh(jnp.arange(8.0) @ weights)

    words, weights = jax.random.key_data(jax.random.key(0)), jnp.ones((8, 4))
    in_turn = dispatch.jit_in_turn(draw, jax.devices("cpu")[0])
    assert in_turn(words, weights).tolist() == jax.jit(draw)(words, weights).tolist()


@pytest.mark.parametrize("size", [64, 256])
def test_steps_that_are_small_are_taken_in_turn(size, monkeypatch):
    """Small are all arrays, those in loops too; the numbers are the same."""
    in_turn, asked = dispatch._in_turn, []
    monkeypatch.setattr(
        dispatch, "_in_turn", lambda device: asked.append(device) or in_turn(device)
    )
    monkeypatch.setattr(dispatch.convolutions, "_IS_OLD", True)

    def step(state, sample):
        wide = jnp.outer(state, sample)
        return state + wide @ sample / wide.size, jnp.sum(state)

    fn, device = dispatch.fuse(step, 3), jax.devices("cpu")[0]
    state, sample = jnp.linspace(0, 1, size), jnp.linspace(0, 1, 3 * size).reshape(3, size)
    steps = dispatch.jit_steps(fn, device, state, sample)
    found, expected = steps(jnp.copy(state), sample), jax.jit(fn)(state, sample)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5), found, expected)
    assert asked == [device] * (size == 64)


def test_xla_has_an_option_that_we_know():
    """Else every choice of an action waits for threads, and nothing says so."""
    assert dispatch._in_turn(jax.devices("cpu")[0])
