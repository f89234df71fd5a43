"""The forms in which programs are dispatched compute the same."""

import jax
import jax.numpy as jnp
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
