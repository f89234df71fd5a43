"""The forms in which programs are dispatched compute the same."""

import jax
import jax.numpy as jnp
import pytest

from troupe.agents.learning import dispatch


def test_a_convolution_is_found_wherever_it_is():
    kernel = jnp.ones((2, 2, 1, 1))

    def convolve(x):
        return jax.lax.conv_general_dilated(
            x, kernel, (1, 1), "VALID", dimension_numbers=("NHWC", "HWIO", "NHWC")
        )

    x = jnp.ones((1, 4, 4, 1))
    assert dispatch.holds_convolution(convolve, x)
    assert dispatch.holds_convolution(jax.jit(jax.grad(lambda x: convolve(x).sum())), x)
    nested = lambda x: jax.lax.scan(lambda c, _: (c, convolve(c)), x, None, 2)  # noqa: E731
    assert dispatch.holds_convolution(nested, x)
    assert not dispatch.holds_convolution(lambda x: x @ x, jnp.ones((2, 2)))


@pytest.mark.parametrize("unroll", [False, True])
@pytest.mark.parametrize("num_steps", [1, 3])
def test_fused_steps_are_the_steps_in_turn(unroll, num_steps):
    def step(state, batch):
        state = state * 0.5 + batch.sum()
        return state, {"state": state}

    batches = jnp.arange(2.0 * num_steps).reshape(num_steps, 2)
    state, output = jax.jit(dispatch.fuse(step, num_steps, unroll=unroll))(jnp.ones(()), batches)
    expected = jnp.ones(())
    for k in range(num_steps):
        expected, _ = step(expected, batches[k])
        assert float(output["state"][k]) == pytest.approx(float(expected))
    assert float(state) == pytest.approx(float(expected))
