"""Returns and advantages, for one window of one stream; batch with `jax.vmap`. T: time."""

from __future__ import annotations

from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp


def generalized_advantages(
    r_t: jax.Array,
    discount_t: jax.Array,
    values: jax.Array,
    is_step: jax.Array,
    lambda_: float,
) -> jax.Array:
    """Generalised advantage estimation over windows that may hold several episodes.

    Schulman et al. (2016), https://arxiv.org/abs/1506.02438, equation 16. The last observation of
    an episode is a row of its own from which no step is taken: nothing is carried across it, and
    it is bootstrapped from where the episode was cut short (its discount is not 0).

    Args:
      r_t: [T] rewards that followed rows 0 to T-1.
      discount_t: [T] discounts that followed, gamma included.
      values: [T+1] values of the observations of rows 0 to T.
      is_step: [T] 1 where an action was taken, 0 in the last row of an episode.
      lambda_: mixes one-step estimates (0) and whole returns (1).

    Returns:
      [T] advantages; 0 where no action was taken.
    """
    chex.assert_rank([r_t, discount_t, values, is_step], 1)
    chex.assert_type([r_t, discount_t, values, is_step], float)
    errors = is_step * (r_t + discount_t * values[1:] - values[:-1])

    def backward(advantage_next, row):
        error, discount, step = row
        advantage = error + step * discount * lambda_ * advantage_next
        return advantage, advantage

    zero = jnp.zeros((), errors.dtype)
    _, advantages = jax.lax.scan(backward, zero, (errors, discount_t, is_step), reverse=True)
    return advantages


def n_step_targets(
    r_t: jax.Array,
    discount_t: jax.Array,
    values: jax.Array,
    is_step: jax.Array,
    n: int,
) -> jax.Array:
    """Returns of n steps, bootstrapped behind them, within a window.

    Where an episode or the window ends sooner it is bootstrapped from there. No value of a row is
    taken whose discount is 0.

    Args:
      r_t: [T] rewards that followed rows 0 to T-1.
      discount_t: [T] discounts that followed, gamma included.
      values: [T+1] values of the observations of rows 0 to T.
      is_step: [T] 1 where an action was taken and what followed is in the window, 0 in the last row
        of an episode.
      n: steps, at least 1.

    Returns:
      [T] targets; the row's own value where no action was taken.
    """
    chex.assert_rank([r_t, discount_t, values, is_step], 1)
    targets = values
    for _ in range(n):
        backed_up = jnp.where(is_step > 0, r_t + discount_t * targets[1:], values[:-1])
        targets = jnp.append(backed_up, values[-1])
    return targets[:-1]


class VTrace(NamedTuple):
    """Results of V-trace for a window; no gradient flows through them."""

    targets: jax.Array
    """[T] of the values."""
    advantages: jax.Array
    """[T] of the actions; 0 where none was taken."""


def vtrace(
    log_ratios: jax.Array,
    r_t: jax.Array,
    discount_t: jax.Array,
    values: jax.Array,
    is_step: jax.Array,
    lambda_: float,
    clip_ratio: float = 1.0,
) -> VTrace:
    """Returns of the policy that learns, from steps of one that acted.

    Espeholt et al. (2018), https://arxiv.org/abs/1802.01561, section 4.1 and remark 2. Windows may
    hold several episodes, as of `generalized_advantages`; with ratios of 1 the targets are its
    advantages plus the values.

    Args:
      log_ratios: [T] log-probabilities of the actions, of the policy that learns less of that which
        acted.
      r_t: [T] rewards that followed rows 0 to T-1.
      discount_t: [T] discounts that followed, gamma included.
      values: [T+1] values of the observations of rows 0 to T.
      is_step: [T] 1 where an action was taken, 0 in the last row of an episode.
      lambda_: mixes one-step estimates (0) and whole returns (1).
      clip_ratio: the greatest ratio by which an error or an advantage counts (rho bar); the traces
        are cut at 1.
    """
    chex.assert_rank([log_ratios, r_t, discount_t, values, is_step], 1)
    chex.assert_type([log_ratios, r_t, discount_t, values, is_step], float)
    ratios = jnp.exp(log_ratios)
    clipped = is_step * jnp.minimum(ratios, clip_ratio)
    errors = clipped * (r_t + discount_t * values[1:] - values[:-1])
    traces = is_step * discount_t * lambda_ * jnp.minimum(ratios, 1.0)

    def backward(correction_next, row):
        error, trace = row
        correction = error + trace * correction_next
        return correction, correction

    zero = jnp.zeros((), errors.dtype)
    _, corrections = jax.lax.scan(backward, zero, (errors, traces), reverse=True)
    following = values[1:] + lambda_ * jnp.append(corrections[1:], 0.0)
    advantages = clipped * (r_t + discount_t * following - values[:-1])
    return jax.lax.stop_gradient(VTrace(values[:-1] + corrections, advantages))
