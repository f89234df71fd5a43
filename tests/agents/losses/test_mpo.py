"""MPO's weights and duals, against what one computes by hand."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from troupe.agents.losses import mpo


def f(*values):
    return jnp.asarray(values, jnp.float32)


def test_weights_are_those_of_a_policy_tilted_by_values():
    # Of values 0 and 2 log 3 at temperature 2: one to three.
    weights = mpo.improved_weights(f(0.0, 2 * np.log(3)), jnp.float32(2.0))
    np.testing.assert_allclose(weights, [0.25, 0.75], rtol=1e-6)
    gradient = jax.grad(lambda q: mpo.improved_weights(q, jnp.float32(2.0))[0])(f(0, 1))
    np.testing.assert_array_equal(gradient, [0, 0])


def test_the_temperature_is_least_where_the_weights_are_as_far_as_they_may_be():
    """At the minimum of the dual the KL of the weights from uniform ones is epsilon."""
    q, epsilon = f(0.0, 1.0, 3.0, -2.0), 0.2
    temperatures = jnp.linspace(0.5, 30.0, 20_000)
    duals = jax.vmap(lambda eta: mpo.temperature_dual(q, eta, epsilon))(temperatures)
    weights = np.asarray(mpo.improved_weights(q, temperatures[jnp.argmin(duals)]))
    assert np.sum(weights * np.log(4 * weights)) == pytest.approx(epsilon, rel=1e-2)
    # 2 (0.1 + log mean (1, 3)), by hand.
    dual = mpo.temperature_dual(f(0.0, 2 * np.log(3)), jnp.float32(2.0), 0.1)
    assert float(dual) == pytest.approx(2 * (0.1 + np.log(2.0)), rel=1e-5)


def test_a_multiplier_rises_where_its_limit_is_passed():
    slope = jax.grad(lambda alpha: jnp.sum(mpo.multiplier_dual(f(0.3, 0.0), alpha, f(0.1, 0.1))))
    np.testing.assert_allclose(slope(f(2.0, 2.0)), [-0.2, 0.1], rtol=1e-5)
    through = jax.grad(lambda kl: mpo.multiplier_dual(kl, jnp.float32(2.0), jnp.float32(0.1)))
    assert float(through(jnp.float32(0.3))) == 0.0
