"""Returns and advantages, for one window of one stream; batch with `jax.vmap`. T: time."""

from __future__ import annotations

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
