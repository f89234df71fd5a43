"""Values that change over time, as functions of a count."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp


def annealed(start: float, steps: int | None) -> float | Callable[[jax.Array], jax.Array]:
    """From `start` to 0 over `steps` counts; `start` for ever where they are None."""
    return start if steps is None else linear(start, 0.0, steps)


def linear(start: float, end: float, steps: float) -> Callable[[jax.Array], jax.Array]:
    """From `start` to `end` over `steps` counts, then `end`; `end` at once where steps is 0."""
    if steps <= 0:
        return lambda count: jnp.full(jnp.shape(count), end, jnp.float32)

    def schedule(count):
        fraction = jnp.clip(count / steps, 0.0, 1.0).astype(jnp.float32)
        return start + fraction * (end - start)

    return schedule
