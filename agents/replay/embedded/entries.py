"""The items that a replay holds: which, how old, and how one is drawn."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np

from ..items import SampleInfo
from .priorities import Priorities

Columns = dict[str, Any]


class ItemSink(Protocol):
    """Takes items as they are found in the rows."""

    def insert_one(self, values: tuple[Any, ...]) -> None:
        """Inserts an item: a number for every column, in order."""

    def insert(self, values: tuple[Any, ...], count: int) -> None:
        """Inserts items: for every column `count` numbers, or one for all."""


class Entries:
    """A first-in first-out table of items.

    Items are named by keys, counted from 0; those held are `first` to `next` - 1, and item k lies
    at slot k mod the size of the table. A column holds one number for every item.
    """

    def __init__(
        self,
        max_size: int,
        columns: Columns,
        *,
        priority_exponent: float | None,
        seed: int,
    ) -> None:
        """Makes an empty table.

        Args:
          max_size: Items held; the oldest makes room for a newer one.
          columns: Dtypes by name.
          priority_exponent: alpha; None draws uniformly.
          seed: Of the draws.
        """
        self.max_size = max_size
        self.columns = {name: np.empty(max_size, dtype) for name, dtype in columns.items()}
        self._arrays = list(self.columns.values())
        self.first = self.next = self.sampled = 0
        self._slot = 0
        self._alpha = priority_exponent
        self._priorities = None if priority_exponent is None else Priorities(max_size)
        self._max_priority = 1.0
        self._new_weight = 1.0
        self._generator = np.random.Generator(np.random.SFC64(seed))

    def __len__(self) -> int:
        return self.next - self.first

    def insert_one(self, values: tuple[Any, ...]) -> None:
        """Inserts an item: a number for every column, in order."""
        slot = self._slot
        for array, value in zip(self._arrays, values, strict=True):
            array[slot] = value
        if self._priorities is not None:
            self._priorities.set_one(slot, self._new_weight)
        self.next += 1
        self._slot = slot + 1 if slot + 1 < self.max_size else 0
        if self.next - self.first > self.max_size:
            self.first += 1

    def insert(self, values: tuple[Any, ...], count: int) -> None:
        """Inserts items: for every column `count` numbers, or one for all."""
        if count > self.max_size:
            values = tuple(v if np.ndim(v) == 0 else v[-self.max_size :] for v in values)
            self._slot = (self._slot + count - self.max_size) % self.max_size
            self.next += count - self.max_size
            count = self.max_size
        start, end = self._slot, self._slot + count
        slots: Any = slice(start, end)
        if end >= self.max_size:
            slots = np.arange(start, end) % self.max_size
            end -= self.max_size
        for array, value in zip(self._arrays, values, strict=True):
            array[slots] = value
        if self._priorities is not None:
            if start < end:
                self._priorities.set_range(start, end, self._new_weight)
            else:
                self._priorities.set(slots, self._new_weight)
        self.next += count
        self._slot = end
        if self.next - self.first > self.max_size:
            self.first = self.next - self.max_size

    def draw(self, leading: tuple[int, ...]) -> tuple[np.ndarray, SampleInfo]:
        """Draws items with replacement.

        Returns:
          The items' slots and their `SampleInfo`, shaped as `leading`.
        """
        size = self.next - self.first
        if self._priorities is None:
            keys = self._generator.integers(self.first, self.next, leading)
            slots = keys % self.max_size
            probabilities = np.full(leading, 1.0 / size, np.float32)
        else:
            slots, exact = self._priorities.draw(self._generator.random(leading))
            probabilities = exact.astype(np.float32)
            newest = self.next - 1
            keys = newest - (newest - slots) % self.max_size
        self.sampled += slots.size
        return slots, SampleInfo(keys, probabilities, np.full(leading, size, np.float32))

    def take(self, leading: tuple[int, ...]) -> tuple[np.ndarray, SampleInfo]:
        """Takes the oldest items out, in order, each once."""
        size = self.next - self.first
        count = int(np.prod(leading, dtype=np.int64))
        keys = np.arange(self.first, self.first + count).reshape(leading)
        self.first += count
        self.sampled += count
        ones = np.ones(leading, np.float32)
        return keys % self.max_size, SampleInfo(keys, ones, size * ones)

    def update_priorities(self, keys: np.ndarray, priorities: np.ndarray) -> None:
        """Gives items new priorities; of a key named twice the last counts.

        Raises:
          ValueError: If a priority is negative, infinite or not a number.
        """
        if self._priorities is None or self._alpha is None:
            raise ValueError("the replay samples uniformly: it has no priorities to update.")
        keys = np.asarray(keys, np.int64).reshape(-1)
        priorities = np.asarray(priorities, np.float64).reshape(-1)
        if keys.shape != priorities.shape:
            raise ValueError(f"{keys.size} keys came with {priorities.size} priorities.")
        if not keys.size:
            return
        largest = priorities.max()
        if not (priorities.min() >= 0.0 and largest < np.inf):
            raise ValueError(
                f"priorities lie between {priorities.min()} and {largest}; they must be finite "
                "numbers of at least 0."
            )
        if keys.min() < self.first:
            held = keys >= self.first
            keys, priorities = keys[held], priorities[held]
        if largest > self._max_priority:
            self._max_priority = float(largest)
            self._new_weight = self._max_priority**self._alpha
        self._priorities.set(keys % self.max_size, priorities**self._alpha)

    def save(self) -> dict[str, Any]:
        """All of it; the columns as views."""
        used = min(self.next, self.max_size)
        random = self._generator.bit_generator.state
        state: dict[str, Any] = {
            "first": np.int64(self.first),
            "next": np.int64(self.next),
            "sampled": np.int64(self.sampled),
            "max_size": np.int64(self.max_size),
            "random": np.asarray(random["state"]["state"], np.uint64),
            "random_rest": np.asarray([random["has_uint32"], random["uinteger"]], np.uint64),
            "columns": {name: array[:used] for name, array in self.columns.items()},
        }
        if self._priorities is not None:
            state["weights"] = self._priorities.save(used)
            state["max_priority"] = np.float64(self._max_priority)
        return state

    def restore(self, state: dict[str, Any]) -> None:
        """Takes back what `save` gave.

        Raises:
          ValueError: If it is of another size, or has no priorities where they are needed.
        """
        if int(state["max_size"]) != self.max_size:
            raise ValueError(
                f"the saved replay has a max_size of {int(state['max_size'])}, and this one of "
                f"{self.max_size}."
            )
        if (self._priorities is None) == ("weights" in state):
            raise ValueError(
                "one of the saved replay and this one is prioritised and the other is not."
            )
        self.first, self.next = int(state["first"]), int(state["next"])
        self.sampled = int(state["sampled"])
        self._slot = self.next % self.max_size
        rest = state["random_rest"]
        self._generator.bit_generator.state = {
            "bit_generator": "SFC64",
            "state": {"state": np.asarray(state["random"], np.uint64)},
            "has_uint32": int(rest[0]),
            "uinteger": int(rest[1]),
        }
        for name, array in self.columns.items():
            saved = state["columns"][name]
            array[: len(saved)] = saved
        if self._priorities is not None and self._alpha is not None:
            self._priorities.restore(np.asarray(state["weights"]))
            self._max_priority = float(state["max_priority"])
            self._new_weight = self._max_priority**self._alpha
