"""Gradient descent in one call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

Nest = Any


class Descent(NamedTuple):
    """Result of one gradient step."""

    params: Nest
    optimizer: Nest
    loss: jax.Array
    """[]"""
    aux: Any
    """Returned by the loss beside its value."""
    gradient_norm: jax.Array
    """[] the global norm, before it was cut."""


def descend(
    loss: Callable[..., tuple[jax.Array, Any]],
    optimizer: optax.GradientTransformation,
    params: Nest,
    opt_state: Nest,
    *args: Any,
    max_norm: float | None = None,
    step_size: jax.Array | float | None = None,
) -> Descent:
    """A gradient step on the parameters.

    Args:
      loss: `(params, *args) -> (loss [], aux)`.
      optimizer: what makes steps of gradients.
      params: what the loss is lessened by.
      opt_state: of the optimizer.
      *args: of the loss.
      max_norm: gradients are scaled down to this global norm; None leaves them.
      step_size: None where the optimizer gives steps; a number where it gives directions uphill,
        of which the step is minus so many (a rate that goes by another count than its own).
    """
    (value, aux), gradients = jax.value_and_grad(loss, has_aux=True)(params, *args)
    norm = optax.tree.norm(gradients)
    if max_norm is not None:
        gradients = scale_to_norm(gradients, norm, max_norm)
    updates, opt_state = optimizer.update(gradients, opt_state, params)
    if step_size is None:
        params = optax.apply_updates(params, updates)
    else:
        params = jax.tree.map(lambda p, d: p - step_size * d, params, updates)
    return Descent(params, opt_state, value, aux, norm)


def scale_to_norm(gradients: Nest, norm: jax.Array, max_norm: float) -> Nest:
    """Gradients scaled down to a global norm, where theirs is greater.

    As `optax.clip_by_global_norm` (Pascanu et al., 2013, https://arxiv.org/abs/1211.5063), for one
    who has the norm already, with one factor for all numbers where that divides each of them.

    Args:
      gradients: arrays of any shapes.
      norm: [] theirs, `optax.tree.norm`.
      max_norm: the greatest norm to return; above 0, or 0 for none.
    """
    factor = jnp.where(norm > max_norm, max_norm / norm, 1.0)
    return jax.tree.map(lambda x: factor.astype(x.dtype) * x, gradients)
