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
    target = r_t + discount_t * q_t_target[jnp.argmax(q_t_selector)]
    return jax.lax.stop_gradient(target) - q_tm1[a_tm1]


def huber(error: jax.Array, threshold: float) -> jax.Array:
    """Half the square up to the threshold, linear beyond (Huber, 1964): bounded gradients."""
    quadratic = jnp.minimum(jnp.abs(error), threshold)
    return 0.5 * quadratic**2 + threshold * (jnp.abs(error) - quadratic)


def squared(error: jax.Array) -> jax.Array:
    """Half the square of the error."""
    return 0.5 * error**2
