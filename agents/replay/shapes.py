"""Shapes of a replay's batches and bytes of its items, known before anything is written."""

from __future__ import annotations

import math
from typing import Any

import jax
import numpy as np

from .items import (
    Episodes,
    ReplaySpec,
    Rollouts,
    Sample,
    SampleInfo,
    Sequence,
    Sequences,
    Transition,
)

Nest = Any
_OUTCOME_BYTES = 12  # Reward, discount and step type.


def sample_shapes(
    spec: ReplaySpec,
    environment_spec: Any,
    extras_spec: Nest,
    num_batches: int | None = None,
    *,
    key_dtype: Any = np.int64,
) -> Sample:
    """Shapes and dtypes of a batch, [B, ...]; of K = `num_batches` at once, [K, B, ...].

    Args:
      spec: what an item is, and B.
      environment_spec: its `observations` and `actions` say what rows hold.
      extras_spec: of what the policy stores beside an action.
      num_batches: K; None: one batch, without a dimension for it.
      key_dtype: of the items' names.

    Returns:
      A `Sample` of `jax.ShapeDtypeStruct`.
    """
    leading = (spec.batch_size,) if num_batches is None else (num_batches, spec.batch_size)

    def info(dtype: Any) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(leading, dtype)

    length: tuple[int, ...] = ()
    if isinstance(spec.item, Sequences):
        length = (spec.item.length,)
    elif isinstance(spec.item, Episodes):
        length = (spec.item.max_length,)
    elif isinstance(spec.item, Rollouts):
        length = (spec.item.length + 1,)

    def rows(specs: Nest) -> Nest:
        return jax.tree.map(
            lambda one: jax.ShapeDtypeStruct((*leading, *length, *one.shape), one.dtype), specs
        )

    def number(dtype: Any) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct((*leading, *length), dtype)

    observation = rows(environment_spec.observations)
    common = {
        "observation": observation,
        "action": rows(environment_spec.actions),
        "reward": number(np.float32),
        "discount": number(np.float32),
        "extras": rows(extras_spec),
    }
    data: Any
    if length:
        data = Sequence(**common, step_type=number(np.int32), mask=number(np.float32))
    else:
        data = Transition(**common, next_observation=observation)
    return Sample(SampleInfo(info(key_dtype), info(np.float32), info(np.float32)), data)


def held_bytes(spec: ReplaySpec, environment_spec: Any, extras_spec: Nest, items: int) -> int:
    """About the bytes that so many items take: each row once, and of a stack of frames the newest.

    Where items are whole episodes, as many as if each were as long as it may be.
    """
    rows = 1
    if isinstance(spec.item, Sequences):
        rows = spec.item.period
    elif isinstance(spec.item, Episodes):
        rows = spec.item.max_length
    elif isinstance(spec.item, Rollouts):
        rows = spec.item.length
    leaves = jax.tree.leaves((environment_spec.observations, environment_spec.actions, extras_spec))
    row = sum(
        math.prod(leaf.shape) * np.dtype(leaf.dtype).itemsize // getattr(leaf, "stack", 1)
        for leaf in leaves
    )
    return items * rows * (row + _OUTCOME_BYTES)
