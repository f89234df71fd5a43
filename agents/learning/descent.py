"""What is done with gradients before an optimizer takes them."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

Nest = Any


def global_norm(gradients: Nest) -> jax.Array:
    """The root of the sum of all squares, []: `optax.tree.norm`.

    Columns are summed first and the sums by a product: XLA on CPU computes those in vectors, and a
    sum of a whole matrix not, which took 4 % of a step of 70,000 parameters.
    """

    def sum_of_squares(x: jax.Array) -> jax.Array:
        if x.ndim < 2:
            return jnp.sum(x * x)
        columns = jnp.sum(x * x, axis=0).ravel()
        return jnp.dot(columns, jnp.ones_like(columns))

    return jnp.sqrt(sum(map(sum_of_squares, jax.tree.leaves(gradients)), jnp.zeros(())))


def scale_to_norm(gradients: Nest, norm: jax.Array, max_norm: float) -> Nest:
    """Gradients scaled down to a global norm, where theirs is greater.

    As `optax.clip_by_global_norm` (Pascanu et al., 2013, https://arxiv.org/abs/1211.5063), for one
    who has the norm already, with one factor for all numbers where that divides each of them.

    Args:
      gradients: arrays of any shapes.
      norm: [] their `global_norm`.
      max_norm: the greatest norm to return; above 0, or 0 for none.
    """
    factor = jnp.where(norm > max_norm, max_norm / norm, 1.0)
    return jax.tree.map(lambda x: factor.astype(x.dtype) * x, gradients)
