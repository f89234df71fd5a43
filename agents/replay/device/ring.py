"""Rows that N streams write in lockstep, in rings that lie on a device.

R: rows that fit. Rows are counted from 0; row t lies at place t mod R. Of a stack of frames only
the newest is kept, as in `replay.embedded.rows`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from ..items import Nest
from ..nests import Structure

_FIRST = 0  # dm_env.StepType.FIRST


class RingState(NamedTuple):
    """The rows of all streams."""

    columns: dict[str, list[jax.Array]]
    """By field, one array [R, N, ...] for every leaf"""
    ages: jax.Array
    """uint8 [R, N]: rows since the first of the episode, or the deepest stack less 1 if fewer"""
    written: jax.Array
    """int32 []: rows ever begun"""


class Ring:
    """Functions of `RingState`."""

    def __init__(self, fields: Mapping[str, Nest], capacity: int, num_streams: int) -> None:
        """Takes specs by name of field ("observation" is among them), R and N."""
        self.capacity, self.num_streams = capacity, num_streams
        self.structures = {name: Structure(specs, name) for name, specs in fields.items()}
        stacks = [getattr(one, "stack", 1) for one in self.structures["observation"].specs]
        self.depth = max(stacks, default=1)
        """Frames of the deepest stack."""

    def init(self) -> RingState:
        """Returns rings without rows."""
        lead = (self.capacity, self.num_streams)
        columns = {
            name: [jnp.zeros((*lead, *_kept_shape(one)), one.dtype) for one in structure.specs]
            for name, structure in self.structures.items()
        }
        return RingState(columns, jnp.zeros(lead, jnp.uint8), jnp.int32(0))

    def begin(self, state: RingState, observation: Nest, kinds: jax.Array) -> RingState:
        """Begins a row in every stream.

        Args:
          state: the rows before.
          observation: [N, ...], which the next action will answer.
          kinds: step types [N].
        """
        place = state.written % self.capacity
        before = state.ages[(state.written - 1) % self.capacity].astype(jnp.int32)
        age = jnp.where(kinds == _FIRST, 0, jnp.minimum(before + 1, self.depth - 1))
        structure = self.structures["observation"]
        newest = [
            _newest(spec, leaf)
            for spec, leaf in zip(structure.specs, structure.flatten(observation), strict=True)
        ]
        state = self._put(state, "observation", newest, place)
        ages = _put_row(state.ages, age, place)
        return state._replace(ages=ages, written=state.written + 1)

    def write(self, state: RingState, name: str, value: Nest) -> RingState:
        """Writes a field [N, ...] of the row that was begun last."""
        leaves = self.structures[name].flatten(value)
        return self._put(state, name, leaves, (state.written - 1) % self.capacity)

    def gather(self, state: RingState, name: str, rows: jax.Array, streams: jax.Array) -> Nest:
        """Returns a field of rows.

        Args:
          state: the rows.
          name: of the field.
          rows: numbers of rows that are still held, int32 of any shape.
          streams: of each, of the same shape.

        Returns:
          A nest of arrays, with the shape of `rows` before that of a row.
        """
        places = rows % self.capacity
        structure, columns = self.structures[name], state.columns[name]
        ages = state.ages[places, streams].astype(jnp.int32)
        found = []
        for spec, column in zip(structure.specs, columns, strict=True):
            stack = getattr(spec, "stack", 1)
            if stack == 1:
                found.append(column[places, streams])
                continue
            back = [jnp.minimum(stack - 1 - k, ages) for k in range(stack)]
            frames = [column[(rows - one) % self.capacity, streams] for one in back]
            found.append(jnp.stack(frames, _axis(spec)))
        return structure.unflatten(found)

    def _put(self, state: RingState, name: str, leaves: list[Any], place: jax.Array) -> RingState:
        columns = [
            _put_row(column, jnp.asarray(leaf).astype(column.dtype), place)
            for column, leaf in zip(state.columns[name], leaves, strict=True)
        ]
        return state._replace(columns={**state.columns, name: columns})


def _put_row(column: jax.Array, row: jax.Array, place: jax.Array) -> jax.Array:
    row = row.astype(column.dtype)
    return jax.lax.dynamic_update_index_in_dim(column, row, place, 0)


def _axis(spec: Any) -> int:
    """Returns the dimension of a stack, counted from the end."""
    axis: int = spec.axis
    return axis if axis < 0 else axis - len(spec.shape)


def _kept_shape(spec: Any) -> tuple[int, ...]:
    shape = list(spec.shape)
    if getattr(spec, "stack", 1) > 1:
        del shape[_axis(spec)]
    return tuple(shape)


def _newest(spec: Any, leaf: jax.Array) -> jax.Array:
    if getattr(spec, "stack", 1) == 1:
        return leaf
    return jnp.take(leaf, -1, axis=_axis(spec))
