"""Rows that count and rows that do not: masks of 1 and 0, as floats. T: time."""

from __future__ import annotations

import chex
import dm_env
import jax
import jax.numpy as jnp

_FIRST, _LAST = int(dm_env.StepType.FIRST), int(dm_env.StepType.LAST)


def mean(x: jax.Array, mask: jax.Array) -> jax.Array:
    """The mean [] of `x` [...] where `mask` [...] is 1; 0 where it is nowhere."""
    return jnp.sum(mask * x) / jnp.maximum(jnp.sum(mask), 1.0)


def normalize(x: jax.Array, mask: jax.Array) -> jax.Array:
    """`x` [...] with mean 0 and deviation 1 over where `mask` [...] is 1."""
    centred = x - mean(x, mask)
    return centred * jax.lax.rsqrt(mean(centred**2, mask) + 1e-8)


def learned_steps(step_type: jax.Array, mask: jax.Array, burn_in: int = 0) -> jax.Array:
    """The mask of the rows of a window of `Sequences` that are learned from.

    Those whose outcome is known, that is whose next row is in the window, behind the burn-in: rows
    that only warm a recurrent state up (Kapturowski et al., 2019,
    https://openreview.net/forum?id=r1lyTjAqYX). A window that begins an episode needs none, as the
    state it begins with is the right one, and is learned from as a whole; so episodes shorter than
    the burn-in are, too. With a period of length - 1 - burn_in every action is learned from in
    exactly one window.

    Args:
      step_type: [T] int, of the window.
      mask: [T] 1 for rows that were seen, 0 for padding.
      burn_in: rows to leave out.

    Returns:
      [T] float32: 1 where the row is learned from.
    """
    chex.assert_rank([step_type, mask], 1)
    has_next = jnp.append(mask[1:], 0.0) * (step_type != _LAST)
    is_behind = jnp.arange(step_type.shape[0]) >= burn_in
    return has_next * (is_behind | (step_type[0] == _FIRST))
