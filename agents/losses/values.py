"""Losses of Q-learning, for one transition; batch them with `jax.vmap`. A: actions."""

from __future__ import annotations

import chex
import jax
import jax.numpy as jnp


def q_learning_error(
    q_tm1: jax.Array,
    a_tm1: jax.Array,
    r_t: jax.Array,
    discount_t: jax.Array,
    q_t_target: jax.Array,
    q_t_selector: jax.Array,
) -> jax.Array:
    """The temporal-difference error of Q-learning.

    With `q_t_selector` the online network's values it is double Q-learning (van Hasselt et al.,
    2016, https://arxiv.org/abs/1509.06461, equation 4); with the target network's, Q-learning (Mnih
    et al., 2015). No gradient flows through the target.

    Args:
      q_tm1: [A] online values at t-1.
      a_tm1: [] int, the action taken at t-1.
      r_t: [] reward that followed, n-step where the transition is.
      discount_t: [] what the value at t is multiplied with, gamma included.
      q_t_target: [A] values that are bootstrapped from.
      q_t_selector: [A] values that choose the action bootstrapped from.

    Returns:
      [] target less estimate.
    """
    chex.assert_rank([q_tm1, a_tm1, r_t, discount_t, q_t_target, q_t_selector], [1, 0, 0, 0, 1, 1])
    chex.assert_type([q_tm1, r_t, discount_t, q_t_target, q_t_selector], float)
    return td_error(q_tm1[a_tm1], r_t, discount_t, q_t_target[jnp.argmax(q_t_selector)])


def td_error(
    value_tm1: jax.Array, r_t: jax.Array, discount_t: jax.Array, value_t: jax.Array
) -> jax.Array:
    """The temporal-difference error of an estimate; no gradient flows through the target.

    Args:
      value_tm1: [] the estimate at t-1.
      r_t: [] reward that followed, n-step where the transition is.
      discount_t: [] what the value at t is multiplied with, gamma included.
      value_t: [] the value bootstrapped from.

    Returns:
      [] target less estimate.
    """
    chex.assert_rank([value_tm1, r_t, discount_t, value_t], 0)
    return jax.lax.stop_gradient(r_t + discount_t * value_t) - value_tm1


def munchausen_reward(
    r_t: jax.Array,
    discount_t: jax.Array,
    log_prob_tm1: jax.Array,
    log_probs_t: jax.Array,
    *,
    scale: float,
    temperature: float,
    least: float,
) -> jax.Array:
    """The reward as an agent that tells itself stories sees it.

    Vieillard et al. (2020), https://arxiv.org/abs/2007.14430, section 3: to it are added the scaled
    log-policy of the action taken, and what the policy's entropy at t is worth. What is left of the
    target is the mean of the values at t under the policy.

    Args:
      r_t: [] reward that followed.
      discount_t: [] what values at t are multiplied with, gamma included.
      log_prob_tm1: [] of the action taken at t-1, under the softmax of values over temperature.
      log_probs_t: [A] of all actions at t, likewise.
      scale: alpha, 0.9 in the paper; with 0 it is soft Q-learning.
      temperature: tau, 0.03 in the paper.
      least: the log-policy times the temperature is not less: l_0, -1 in the paper.
    """
    chex.assert_rank([r_t, discount_t, log_prob_tm1, log_probs_t], [0, 0, 0, 1])
    bonus = scale * jnp.clip(temperature * log_prob_tm1, least, 0.0)
    entropy = -jnp.sum(jnp.exp(log_probs_t) * log_probs_t)
    return r_t + bonus + discount_t * temperature * entropy


def signed_hyperbolic(x: jax.Array, epsilon: float = 1e-3) -> jax.Array:
    """Makes returns of any scale ones of about 1: a signed square root, and a little of `x`.

    Pohlen et al. (2018), https://arxiv.org/abs/1805.11593, section 3.2; rewards need no clipping.
    """
    return jnp.sign(x) * (jnp.sqrt(jnp.abs(x) + 1.0) - 1.0) + epsilon * x


def signed_parabolic(x: jax.Array, epsilon: float = 1e-3) -> jax.Array:
    """The inverse of `signed_hyperbolic`."""
    # (sqrt(1 + 4 epsilon y) - 1) / 2 epsilon, without the difference of two numbers close to 1.
    y = jnp.abs(x) + 1.0 + epsilon
    root = 2.0 * y / (jnp.sqrt(1.0 + 4.0 * epsilon * y) + 1.0)
    return jnp.sign(x) * (root**2 - 1.0)


def huber(error: jax.Array, threshold: float) -> jax.Array:
    """Half the square up to the threshold, linear beyond (Huber, 1964): bounded gradients."""
    quadratic = jnp.minimum(jnp.abs(error), threshold)
    return 0.5 * quadratic**2 + threshold * (jnp.abs(error) - quadratic)


def squared(error: jax.Array) -> jax.Array:
    """Half the square of the error."""
    return 0.5 * error**2


def expectile(error: jax.Array, level: float) -> jax.Array:
    """The square of an error, whose two signs weigh differently: minimal at an expectile.

    Kostrikov et al. (2021), https://arxiv.org/abs/2110.06169, equation 5.

    Args:
      error: [...] of the sample less the estimate.
      level: tau: 0.5 is the mean, near 1 the greatest sample.

    Returns:
      [...].
    """
    return jnp.where(error > 0, level, 1.0 - level) * error**2
