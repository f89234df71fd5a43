"""Weights and priorities of an update; none if its replay is not prioritised."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from ..configs import PriorityConfig
from ..losses import priorities
from ..replay.items import SampleInfo
from . import schedules


class Prioritisation:
    """Weights that losses have, and priorities that they come to; B: batch, T: time."""

    def __init__(self, config: PriorityConfig):
        self._is_on = config.priority_exponent is not None
        self._exponent = schedules.linear(
            config.importance_exponent, 1.0, config.importance_exponent_steps
        )

    def weights(self, info: SampleInfo, steps: jax.Array) -> jax.Array:
        """[B] of the items' losses, in the gradient step behind so many; 1 of items drawn alike."""
        if not self._is_on:
            return jnp.ones(info.probabilities.shape)
        return priorities.importance_weights(info.probabilities, info.size, self._exponent(steps))

    def of_errors(self, errors: jax.Array) -> jax.Array | None:
        """New priorities [B] of items with these errors [B]; None of items drawn alike."""
        return priorities.from_errors(errors) if self._is_on else None

    def of_sequences(self, errors: jax.Array, mask: jax.Array, mix: float) -> jax.Array | None:
        """Likewise [B], of sequences with errors [B, T]: see `losses.priorities.of_sequence`."""
        if not self._is_on:
            return None
        return jax.vmap(priorities.of_sequence, in_axes=(0, 0, None))(errors, mask, mix)
