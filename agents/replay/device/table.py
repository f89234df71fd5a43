"""A first-in first-out table of items on a device: which are held, and how some are drawn.

Items are named by keys, counted from 0; those held are `first` to `next` - 1, and item k lies at
slot k mod the size of the table, as in `replay.embedded.entries`.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

from ..items import SampleInfo
from . import sum_tree
from .windows import FoundItems

_DTYPES = {"reward": jnp.float32, "discount": jnp.float32}


class TableState(NamedTuple):
    """The items that are held."""

    columns: dict[str, jax.Array]
    """[size] of each"""
    first: jax.Array
    """int32 []: key of the oldest item"""
    next: jax.Array
    """int32 []: key that the next item gets; items ever inserted"""
    sampled: jax.Array
    """int32 []: items ever drawn, modulo 2^32"""
    weights: jax.Array | None
    """Of `sum_tree`; None: items are drawn uniformly"""
    max_priority: jax.Array
    """float32 []: the largest ever given; new items have it"""


class Table:
    """Functions of `TableState`."""

    def __init__(self, size: int, names: tuple[str, ...], priority_exponent: float | None) -> None:
        """Takes the items that it holds at the most, names of columns, and alpha."""
        self.size, self._names, self._alpha = size, names, priority_exponent

    def init(self) -> TableState:
        """Returns an empty table."""
        columns = {name: jnp.zeros(self.size, _DTYPES.get(name, jnp.int32)) for name in self._names}
        weights = None if self._alpha is None else sum_tree.init(self.size)
        zero = jnp.int32(0)
        return TableState(columns, zero, zero, zero, weights, jnp.float32(1.0))

    def insert(self, state: TableState, found: FoundItems) -> TableState:
        """Inserts the items that were found; the oldest make room."""
        count = found.valid.sum(dtype=jnp.int32)
        keys = state.next + jnp.cumsum(found.valid, dtype=jnp.int32) - 1
        slots = jnp.where(found.valid, keys % self.size, self.size)
        columns = {
            name: column.at[slots].set(found.columns[name], mode="drop")
            for name, column in state.columns.items()
        }
        after = state.next + count
        state = state._replace(
            columns=columns, next=after, first=jnp.maximum(state.first, after - self.size)
        )
        if state.weights is None or self._alpha is None:
            return state
        new = jnp.full(slots.shape, 1.0) * state.max_priority**self._alpha
        # Slots of no item lie beyond every tree.
        beyond = jnp.where(found.valid, slots, state.weights.shape[0])
        return state._replace(weights=sum_tree.set_weights(state.weights, beyond, new))

    def drop_before(self, state: TableState, row: jax.Array) -> TableState:
        """Drops the oldest items for as long as they begin before a row."""

        def begins_before(state: TableState) -> jax.Array:
            oldest = state.columns["row"][state.first % self.size]
            return (state.first < state.next) & (oldest < row)

        def drop(state: TableState) -> TableState:
            weights = state.weights
            if weights is not None:
                slot = (state.first % self.size)[None]
                weights = sum_tree.set_weights(weights, slot, jnp.zeros(1))
            return state._replace(first=state.first + 1, weights=weights)

        columns = state.columns
        only = state._replace(columns={"row": columns["row"]})
        return jax.lax.while_loop(begins_before, drop, only)._replace(columns=columns)

    def draw(
        self, state: TableState, key: jax.Array, leading: tuple[int, ...]
    ) -> tuple[TableState, dict[str, jax.Array], SampleInfo]:
        """Draws items with replacement.

        Returns:
          The state, columns of the items, and their `SampleInfo`, shaped as `leading`.
        """
        size = state.next - state.first
        if state.weights is None:
            keys = jax.random.randint(key, leading, state.first, state.next)
            slots = keys % self.size
            probabilities = jnp.full(leading, 1.0) / size
        else:
            slots, probabilities = sum_tree.draw(state.weights, jax.random.uniform(key, leading))
            newest = state.next - 1
            keys = newest - (newest - slots) % self.size
        held = jnp.full(leading, 1.0) * size
        info = SampleInfo(keys, probabilities, held)
        return self._drawn(state, slots, info)

    def take(
        self, state: TableState, leading: tuple[int, ...]
    ) -> tuple[TableState, dict[str, jax.Array], SampleInfo]:
        """Takes the oldest items out, in order, each once. Returns as `draw`."""
        count = 1
        for size in leading:
            count *= size
        keys = (state.first + jnp.arange(count, dtype=jnp.int32)).reshape(leading)
        ones = jnp.ones(leading, jnp.float32)
        info = SampleInfo(keys, ones, ones * (state.next - state.first))
        state, items, info = self._drawn(state, keys % self.size, info)
        return state._replace(first=state.first + count), items, info

    def _drawn(
        self, state: TableState, slots: jax.Array, info: SampleInfo
    ) -> tuple[TableState, dict[str, jax.Array], SampleInfo]:
        items = {name: column[slots] for name, column in state.columns.items()}
        return state._replace(sampled=state.sampled + slots.size), items, info

    def update_priorities(
        self, state: TableState, keys: jax.Array, priorities: jax.Array
    ) -> TableState:
        """Gives items new priorities; keys of items that are gone are ignored, and of a key named
        twice the last counts.

        Args:
          state: of a prioritised table.
          keys: as `SampleInfo` has them, int32 of any shape.
          priorities: as many numbers of at least 0; one that is not finite counts as 0.
        """
        assert state.weights is not None
        assert self._alpha is not None
        keys, priorities = keys.reshape(-1), priorities.reshape(-1).astype(jnp.float32)
        priorities = jnp.where(jnp.isfinite(priorities), priorities, 0.0)
        order = jnp.arange(len(keys))
        again = (keys[:, None] == keys[None, :]) & (order[None, :] > order[:, None])
        held = (keys >= state.first) & ~again.any(1)
        slots = jnp.where(held, keys % self.size, state.weights.shape[0])
        return state._replace(
            weights=sum_tree.set_weights(state.weights, slots, priorities**self._alpha),
            max_priority=jnp.maximum(state.max_priority, priorities.max()),
        )
