"""Target networks: parameters that follow others."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import optax

Nest = Any


def init(params: Nest) -> Nest:
    """A target where the parameters are; a copy, as a donated state may hold no buffer twice."""
    return jax.tree.map(jnp.copy, params)


def polyak(target: Nest, params: Nest, rate: jax.Array | float) -> Nest:
    """The target after it went part of the way to the parameters: 1 is all of it, 0 none.

    Polyak averaging, as Lillicrap et al. (2016), https://arxiv.org/abs/1509.02971, do it at every
    gradient step with a small rate.
    """
    return optax.incremental_update(params, target, rate)


def periodic(
    target: Nest,
    params: Nest,
    steps: jax.Array,
    period: int,
    *,
    rate: float = 1.0,
    num_steps: int = 1,
) -> Nest:
    """The target after the newest gradient steps: moved if one of them was its turn.

    With a rate of 1 the target is copied every `period` steps (Mnih et al., 2015).

    Args:
      target: where it was before these steps.
      params: to where it moves.
      steps: [] int, gradient steps taken, these included.
      period: gradient steps from turn to turn.
      rate: as of `polyak`, at its turn.
      num_steps: how many these are; the target must have no turn between them.
    """
    if period == 1:
        return polyak(target, params, rate)
    is_due = steps // period > (steps - num_steps) // period
    # Between turns it is not even read, which would be a thirtieth of a step of a Nature network.
    return jax.lax.cond(is_due, lambda: polyak(target, params, rate), lambda: target)
