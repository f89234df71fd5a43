"""Losses of critics of actions, and of policies that they judge, by hand."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from troupe.agents.losses import actor_critic


def f(*values):
    return jnp.asarray(values, jnp.float32)


def test_a_soft_value_is_the_least_and_the_surprise():
    q = jnp.asarray([[1.0, 4.0], [3.0, 2.0]])
    np.testing.assert_allclose(actor_critic.soft_value(q, f(-2, 1), 0.5), [2.0, 1.5])
    np.testing.assert_allclose(actor_critic.soft_value(q, f(-2, 1), 0.0), [1.0, 2.0])


def test_the_temperature_moves_towards_the_entropy_asked_for():
    # An entropy of 1 where 3 is asked for: the temperature rises; of 4: it falls.
    slope = jax.grad(lambda x: jnp.mean(actor_critic.temperature_loss(x, f(-0.5, -1.5), 3.0)))
    assert float(slope(jnp.float32(0.3))) == pytest.approx(-2.0)
    slope = jax.grad(lambda x: jnp.mean(actor_critic.temperature_loss(x, f(-3.5, -4.5), 3.0)))
    assert float(slope(jnp.float32(0.3))) == pytest.approx(1.0)
    through = jax.grad(lambda p: actor_critic.temperature_loss(jnp.float32(1.0), p, 3.0))
    assert float(through(jnp.float32(-1.0))) == 0.0


def test_errors_of_critics_are_summed():
    q = jnp.asarray([[1.0, 4.0], [3.0, 2.0]])
    np.testing.assert_allclose(actor_critic.critic_loss(q, f(2, 1)), [1.0, 5.0])
    of_values, of_target = jax.grad(
        lambda q, y: jnp.sum(actor_critic.critic_loss(q, y)), argnums=(0, 1)
    )(q, f(2, 1))
    np.testing.assert_allclose(of_values, [[-1.0, 3.0], [1.0, 1.0]])
    np.testing.assert_array_equal(of_target, [0, 0])


def test_a_conservative_gap_is_the_soft_maximum_less_the_data():
    # Critics of one value, of actions drawn uniformly from [0, 4]: the integral is 4 exp(value).
    q, drawn = jnp.asarray([[1.0], [3.0]]), jnp.asarray([[[2.0], [3.0]]] * 5)
    density = jnp.full((5, 1), -np.log(4.0))
    gap = actor_critic.conservative_gap(q, drawn, density)
    np.testing.assert_allclose(gap, [(2.0 + np.log(4.0) - 1.0) + (3.0 + np.log(4.0) - 3.0)], 1e-6)
    # Q(a) = 2 a in [0, 1], whose integral of exp is (e^2 - 1) / 2, by actions of another density.
    u = (np.arange(20_000) + 0.5) / 20_000
    action = np.sqrt(u)  # Of density 2 a.
    gap = actor_critic.conservative_gap(
        f(0.7)[None], 2 * f(*action)[:, None, None], jnp.log(2 * f(*action))[:, None]
    )
    np.testing.assert_allclose(gap, [np.log((np.exp(2) - 1) / 2) - 0.7], rtol=5e-3)


def test_a_conservative_gap_moves_values_alone():
    q, drawn, density = f(1)[None], f(0, np.log(3.0))[:, None, None], jnp.zeros((2, 1))
    slopes = jax.grad(lambda *x: jnp.sum(actor_critic.conservative_gap(*x)), argnums=(0, 1, 2))(
        q, drawn, density
    )
    np.testing.assert_allclose(slopes[0], [[-1.0]])
    np.testing.assert_allclose(slopes[1][:, 0, 0], [0.25, 0.75], rtol=1e-6)  # Shares of exp(Q).
    np.testing.assert_array_equal(slopes[2], 0)


def test_smoothing_noise_is_clipped_and_scaled_and_keeps_the_bounds():
    low, high = f(-1, 0), f(1, 10)
    action = jnp.tile(f(0.9, 5.0), (4_000, 1))
    smoothed = actor_critic.smoothed_action(
        action, jax.random.key(0), std=0.2, clip=0.3, minimum=low, maximum=high
    )
    assert float(smoothed[:, 0].min()) == pytest.approx(0.6)
    assert float(smoothed[:, 0].max()) == 1.0
    np.testing.assert_allclose([smoothed[:, 1].min(), smoothed[:, 1].max()], [3.5, 6.5], rtol=1e-5)
    assert float(smoothed[:, 1].mean()) == pytest.approx(5.0, abs=0.05)
    assert 0.7 < float(smoothed[:, 1].std()) < 1.0  # 1 without the clipping.
