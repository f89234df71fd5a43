"""Gradients and optimizers: the numbers of optax, in fewer operations."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from troupe.agents.learning import optimizers
from troupe.agents.learning.descent import scale_to_norm


def nests(seed, count):
    """Nests of normal numbers, of scales from 1e-6 to 1e3."""
    rng = np.random.default_rng(seed)
    for _ in range(count):
        scale = 10.0 ** rng.integers(-6, 4)
        yield {
            "w": jnp.asarray(scale * rng.normal(size=(7, 3)), jnp.float32),
            "b": (jnp.asarray(scale * rng.normal(size=3), jnp.float32),),
        }


@pytest.mark.parametrize("epsilon", [1e-8, 1e-3])
@pytest.mark.parametrize("learning_rate", [1e-2, lambda count: 1e-2 / (1 + count)])
def test_adam_is_that_of_optax(epsilon, learning_rate):
    ours = optimizers.adam(learning_rate, epsilon=epsilon)
    theirs = optax.adam(learning_rate, eps=epsilon)
    state, expected_state = (o.init(next(nests(0, 1))) for o in (ours, theirs))
    for gradients in nests(1, 50):
        updates, state = ours.update(gradients, state)
        expected, expected_state = theirs.update(gradients, expected_state)
        jax.tree.map(
            lambda x, y: np.testing.assert_allclose(x, y, rtol=2e-5, atol=1e-9), updates, expected
        )
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-6), state, expected_state)


@pytest.mark.parametrize("count", [1, 10, 171, 172, 1_000, 25_000, 10**9])
def test_adam_corrects_the_bias_of_any_count(count):
    """With powers that are no longer those of floats left out, to the same numbers."""
    optimizer, theirs = optimizers.scale_by_adam(), optax.scale_by_adam()
    gradients = {"w": jnp.full(3, 0.5)}
    state = theirs.init(gradients)._replace(count=jnp.int32(count - 1))
    updates, _ = optimizer.update(gradients, state)
    expected, _ = theirs.update(gradients, state)
    np.testing.assert_allclose(updates["w"], expected["w"], rtol=2e-5)
    for base in (0.9, 0.999, 0.5):
        assert optimizers._one_less(base, jnp.int32(count)) == 1 - base ** jnp.int32(count)


def test_adam_keeps_the_dtype_of_the_parameters():
    params = {"w": jnp.ones(3, jnp.bfloat16)}
    optimizer = optimizers.adam(1e-2)
    updates, state = optimizer.update(params, optimizer.init(params))
    leaves = jax.tree.leaves((updates, state[0].mu, state[0].nu))
    assert all(x.dtype == jnp.bfloat16 for x in leaves)


def test_parameters_of_norm_1_keep_it():
    """Along the inputs, each member's and output's own; the others take the steps of Adam."""
    rng = np.random.default_rng(0)
    start, scale = jnp.asarray(rng.normal(size=(2, 5, 3)), jnp.float32), jnp.ones((2, 3))
    start /= jnp.linalg.norm(start, axis=1, keepdims=True)
    params = {"layer": {"unit_w": start, "scale": scale}}
    ours, theirs = optimizers.adam(0.1), optimizers.adam(0.1)
    state, alone, other = ours.init(params), theirs.init({"scale": scale}), {"scale": scale}
    for _ in range(20):
        gradients = jax.tree.map(lambda x: jnp.asarray(rng.normal(size=x.shape), x.dtype), params)
        steps, state = ours.update(gradients, state, params)
        params = optax.apply_updates(params, steps)
        steps, alone = theirs.update({"scale": gradients["layer"]["scale"]}, alone, other)
        other = optax.apply_updates(other, steps)
        norms = jnp.linalg.norm(params["layer"]["unit_w"], axis=1)
        np.testing.assert_allclose(norms, 1.0, rtol=1e-6)
    assert np.abs(params["layer"]["unit_w"] - start).max() > 0.1
    np.testing.assert_array_equal(params["layer"]["scale"], other["scale"])
    with pytest.raises(ValueError, match="unit_w need `params`"):
        ours.update(gradients, state)


@pytest.mark.parametrize("max_norm", [1e-3, 1.0, 1e6])
def test_scaling_to_a_norm_is_the_clipping_of_optax(max_norm):
    for gradients in nests(2, 20):
        scaled = scale_to_norm(gradients, optax.tree.norm(gradients), max_norm)
        expected, _ = optax.clip_by_global_norm(max_norm).update(gradients, optax.EmptyState())
        jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-6), scaled, expected)


def test_gradients_of_zero_stay_zero():
    zeros = {"w": jnp.zeros(3)}
    assert not scale_to_norm(zeros, optax.tree.norm(zeros), 1.0)["w"].any()
