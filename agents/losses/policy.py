"""Losses of policies, for one step; any shape will do. Probabilities as logarithms."""

from __future__ import annotations

import chex
import jax
import jax.numpy as jnp


def clipped_surrogate(
    log_prob: jax.Array, old_log_prob: jax.Array, advantage: jax.Array, clip: jax.Array | float
) -> jax.Array:
    """The clipped surrogate objective as a loss.

    Schulman et al. (2017), https://arxiv.org/abs/1707.06347, equation 7.

    Args:
      log_prob: [...] of the action under the policy that learns.
      old_log_prob: [...] under the policy that acted.
      advantage: [...] of the action.
      clip: [] how far the ratio of the two may leave 1 and still be rewarded.

    Returns:
      [...] the loss of each.
    """
    chex.assert_equal_shape([log_prob, old_log_prob, advantage])
    ratio = jnp.exp(log_prob - old_log_prob)
    clipped = jnp.clip(ratio, 1.0 - clip, 1.0 + clip)
    return -jnp.minimum(ratio * advantage, clipped * advantage)


def kl_estimate(log_prob: jax.Array, old_log_prob: jax.Array) -> jax.Array:
    """Estimates how far a policy moved, KL(old, new), from actions that the old one drew.

    The estimate of low variance, never negative, of http://joschu.net/blog/kl-approx.html.

    Args:
      log_prob: [...] of the action under the new policy.
      old_log_prob: [...] under the old one.

    Returns:
      [...] in nats; their mean is the estimate.
    """
    chex.assert_equal_shape([log_prob, old_log_prob])
    log_ratio = log_prob - old_log_prob
    return jnp.expm1(log_ratio) - log_ratio


def exponential_weight(advantage: jax.Array, temperature: float, greatest: float) -> jax.Array:
    """The weight of an action of the data in regression weighted by advantages.

    exp(A / temperature), no more than `greatest`: Peng et al. (2019),
    https://arxiv.org/abs/1910.00177, equation 4. No gradient flows through it.

    Args:
      advantage: [...] of the action.
      temperature: near 0 only the best actions count, above all alike.
      greatest: the bound, which keeps single actions from counting for all.

    Returns:
      [...].
    """
    weight = jnp.minimum(jnp.exp(advantage / temperature), greatest)
    return jax.lax.stop_gradient(weight)
