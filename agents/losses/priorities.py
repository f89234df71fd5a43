"""Prioritised replay (Schaul et al., 2016, https://arxiv.org/abs/1511.05952). B: batch."""

from __future__ import annotations

import chex
import jax
import jax.numpy as jnp

from . import masks


def importance_weights(probabilities: jax.Array, size: jax.Array, exponent: jax.Array) -> jax.Array:
    """Weights that undo the bias of prioritised sampling, largest 1.

    Section 3.4: (1 / (N P(i)))^beta, over the greatest of the batch.

    Args:
      probabilities: [B] with which the items were drawn.
      size: [B] items the replay held, N.
      exponent: [] beta: 0 weighs all alike, 1 undoes the bias wholly.
    """
    chex.assert_rank([probabilities, size], [1, 1])
    weights = (1.0 / (size * probabilities)) ** exponent
    return weights / jnp.max(weights)


def from_errors(errors: jax.Array) -> jax.Array:
    """Priorities [...] of items with these errors [...]: in proportion to their size (section 3.3).

    A constant, 1e-6, keeps every item in reach.
    """
    return jnp.abs(errors) + 1e-6


def of_sequence(errors: jax.Array, mask: jax.Array, mix: float) -> jax.Array:
    """The priority [] of a sequence: a mixture of its greatest and its mean absolute error.

    Kapturowski et al. (2019), https://openreview.net/forum?id=r1lyTjAqYX, section 2.3.

    Args:
      errors: [T] of its steps.
      mask: [T] 1 for those that count.
      mix: eta, part of the greatest.
    """
    chex.assert_equal_shape([errors, mask])
    sizes = jnp.abs(errors) * mask
    return from_errors(mix * jnp.max(sizes) + (1.0 - mix) * masks.mean(sizes, mask))
