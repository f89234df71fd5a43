"""Values that change over time, as functions of a count."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
import optax

if TYPE_CHECKING:
    from ..configs import AdamConfig


def learning_rate(config: AdamConfig) -> float | Callable[[jax.Array], jax.Array]:
    """Returns the step size of a config: a number, or a function of the count of gradient steps.

    Raises:
      ValueError: if its schedule cannot be imported, or makes none.
    """
    rate, steps = config.learning_rate, config.learning_rate_steps
    warmup, kind = config.learning_rate_warmup_steps, config.learning_rate_schedule
    if ":" in kind:
        return _imported(config)
    if not warmup:
        if steps is None:
            return rate
        if kind == "linear":
            return linear(rate, 0.0, steps)
    part = optax.constant_schedule(1.0)
    if steps is not None:
        cosine = kind == "cosine"
        part = optax.cosine_decay_schedule(1.0, steps) if cosine else linear(1.0, 0.0, steps)
    if warmup:
        part = optax.join_schedules([linear(0.0, 1.0, warmup), part], [warmup])
    return lambda count: rate * part(count)


def _imported(config: AdamConfig) -> Callable[[jax.Array], jax.Array]:
    name = config.learning_rate_schedule
    module, _, function = name.rpartition(":")
    try:
        schedule = getattr(importlib.import_module(module), function)(config)
    except (ImportError, AttributeError, TypeError) as error:
        raise ValueError(
            f"learning_rate_schedule {name} is no function of a config that can be imported: "
            f"{error}."
        ) from error
    if not callable(schedule):
        raise ValueError(
            f"learning_rate_schedule {name} makes a {type(schedule).__name__}; it must make an "
            "optax schedule, a function of the count of gradient steps."
        )
    return schedule


def linear(start: float, end: float, steps: float) -> Callable[[jax.Array], jax.Array]:
    """From `start` to `end` over `steps` counts, then `end`; `end` at once where steps is 0."""
    if steps <= 0:
        return lambda count: jnp.full(jnp.shape(count), end, jnp.float32)

    def schedule(count):
        fraction = jnp.clip(count / steps, 0.0, 1.0).astype(jnp.float32)
        return start + fraction * (end - start)

    return schedule
