"""Rows that the streams of a vector of environments write, kept in rings.

R: rows that fit, N: streams, which are in lockstep: a step of the vector writes one row in each.
Rows are counted from 0, for ever; row t lies at place t mod R. The flat index of a row is
`place * N + stream`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from dm_env import StepType

from ..nests import Nest, Structure

_FIRST = int(StepType.FIRST)
_VERIFIED = 32  # First rows whose stacks are compared with the frames before them.


class Column:
    """One leaf of the fields of a row.

    If its spec has a `stack` and an `axis`, a leaf is a stack of frames, and only the newest frame
    is kept: index k of the stack at time t is the frame of t - stack + 1 + k, or the first of the
    episode. Memory is reserved at once and used as rows are written.
    """

    def __init__(self, spec: Any, capacity: int, num_envs: int | None) -> None:
        self.shape, self.dtype = tuple(spec.shape), np.dtype(spec.dtype)
        self.stack: int = getattr(spec, "stack", 1)
        self.axis: int = getattr(spec, "axis", -1)
        self._newest: Any = ...
        kept = list(self.shape)
        if self.stack > 1:
            if self.axis >= 0:
                self.axis -= len(kept)
            del kept[self.axis]
            self._newest = (..., -1, *(slice(None),) * (-self.axis - 1))
        self._kept = tuple(kept)
        self._lead = () if num_envs is None else (num_envs,)
        self._streams = num_envs or 1
        self.place(np.empty((capacity * self._streams, *self._kept), self.dtype))

    def place(self, flat: np.ndarray) -> None:
        """Takes `flat`, [R * N, ...], as its memory."""
        self.flat = flat
        self.rows = flat.reshape(-1, *self._lead, *self._kept)

    def kept(self, value: Any) -> Any:
        """Returns the part of a value that is kept, with any leading dimensions."""
        return value if self.stack == 1 else value[self._newest]

    def write(self, place: int, value: Any) -> None:
        """Writes the row of every stream."""
        self.rows[place] = self.kept(value)

    def gather(self, flat: np.ndarray, ages: np.ndarray | None, out: np.ndarray) -> None:
        """Copies the rows at flat indices, any shape, into `out`, the same shape before the leaf's.

        Args:
          flat: The indices, int.
          ages: Of stacks: the steps from the first row of the episode, or stack - 1 if fewer.
          out: Contiguous.
        """
        if self.stack == 1:
            self.flat.take(flat, axis=0, out=out, mode="clip")
            return
        assert ages is not None
        frames = np.moveaxis(out, self.axis, 0)
        for k in range(self.stack):
            back = np.minimum(self.stack - 1 - k, ages).astype(np.int64)
            back *= self._streams
            np.subtract(flat, back, out=back)
            back += (back < 0) * len(self.flat)
            frames[k] = self.flat.take(back, axis=0)

    def agrees(self, value: Any, place: int, ages: np.ndarray) -> bool:
        """True if the stacks just written at `place` consist of the frames kept before."""
        if self.stack == 1:
            return True
        stacks = np.asarray(value).reshape(self._streams, *self.shape)
        again = np.empty_like(stacks)
        self.gather(place * self._streams + np.arange(self._streams), ages.reshape(-1), again)
        return np.array_equal(stacks, again, equal_nan=stacks.dtype.kind == "f")


class Rows:
    """The rings of all leaves, and where the next row goes."""

    def __init__(self, fields: Mapping[str, Nest], capacity: int, num_envs: int | None) -> None:
        """Reserves the rings.

        Args:
          fields: Specs by name; "observation" is among them.
          capacity: R.
          num_envs: N, or None for one stream whose values have no dimension for it.
        """
        self.capacity = capacity
        self.streams = num_envs or 1
        self.lead = () if num_envs is None else (num_envs,)
        self.structures = {name: Structure(specs, name) for name, specs in fields.items()}
        try:
            self.columns = {
                name: [Column(spec, capacity, num_envs) for spec in structure.specs]
                for name, structure in self.structures.items()
            }
        except MemoryError as error:
            raise ValueError(
                f"{capacity * self.streams} rows of this environment do not fit into memory "
                f"({error}): choose a smaller max_size."
            ) from None
        self.depth = max((column.stack for column in self.columns["observation"]), default=1)
        if self.depth > 256:
            raise ValueError(f"observations stack {self.depth} frames; at most 256 can be stacked.")
        self._age = np.zeros((capacity, *self.lead), np.uint8)
        self._flat_age = self._age.reshape(-1)
        self.written = 0  # Rows ever begun.
        self.place = -1  # Of the row that was begun last.

    def begin(self, observation: Nest, kinds: Any) -> None:
        """Begins a row in every stream: the observation that the next action will answer.

        Args:
          observation: [N, ...].
          kinds: [N] step types.
        """
        previous = self.place
        self.place = place = self.written % self.capacity
        self.written += 1
        leaves = self.structures["observation"].flatten(observation)
        for column, leaf in zip(self.columns["observation"], leaves, strict=True):
            column.write(place, leaf)
        if self.depth > 1:
            age = np.minimum(self._age[previous], self.depth - 2) + 1
            self._age[place] = age * (np.asarray(kinds) != _FIRST)
            if self.written <= _VERIFIED:
                self._verify(leaves, place)

    def write(self, name: str, value: Nest) -> None:
        """Writes a field of the row that was begun last."""
        leaves = self.structures[name].flatten(value)
        for column, leaf in zip(self.columns[name], leaves, strict=True):
            column.rows[self.place] = leaf

    def clear(self, name: str, streams: Any) -> None:
        """Zeroes a field of the row that was begun last, in the streams of a [N] mask (or ...)."""
        for column in self.columns[name]:
            column.rows[self.place, streams] = 0

    def gather(self, name: str, flat: np.ndarray, outs: list[np.ndarray]) -> None:
        """Copies a field of the rows at flat indices into `outs`, one for every leaf."""
        columns = self.columns[name]
        ages = None
        for column, out in zip(columns, outs, strict=True):
            if column.stack > 1 and ages is None:
                ages = self._flat_age.take(flat)
            column.gather(flat, ages, out)

    def copy(self, name: str, start: int, stop: int) -> list[np.ndarray]:
        """Copies a field of rows `start` to `stop` - 1 as it is kept: every leaf [T, N, ...]."""
        places = np.arange(start, stop) % self.capacity
        return [column.rows[places] for column in self.columns[name]]

    def paste(self, name: str, start: int, arrays: Sequence[np.ndarray]) -> None:
        """Writes the arrays that `copy` returned into the rows from `start` on."""
        for column, array in zip(self.columns[name], arrays, strict=True):
            column.rows[np.arange(start, start + len(array)) % self.capacity] = array

    def ages(self, start: int, stop: int) -> np.ndarray:
        """Ages of rows `start` to `stop` - 1, [T, N]: rows since the episode's first, if few."""
        return self._age[np.arange(start, stop) % self.capacity]

    def begin_copies(self, ages: np.ndarray) -> None:
        """Begins as many rows as there are ages; `paste` writes their fields."""
        places = np.arange(self.written, self.written + len(ages)) % self.capacity
        self._age[places] = ages
        self.written += len(ages)
        self.place = (self.written - 1) % self.capacity

    def lay(self, arrays: Mapping[str, Sequence[np.ndarray]], first: np.ndarray) -> None:
        """Takes rows of one stream that are written already, all that fit, in place of its memory.

        Args:
          arrays: the leaves of every field, [R, ...], of a stack the newest frame.
          first: [R] bool: which begin an episode.
        """
        for name, columns in self.columns.items():
            for column, array in zip(columns, arrays[name], strict=True):
                column.place(array)
        (starts,) = np.nonzero(first)
        since = np.arange(len(first)) - np.repeat(starts, np.diff([*starts, len(first)]))
        self._age[...] = np.minimum(since, self.depth - 1)
        self.written, self.place = self.capacity, self.capacity - 1

    def grow(self, capacity: int, oldest: int) -> None:
        """Moves the rows from `oldest` on to rings of another capacity."""
        keep = np.arange(oldest, self.written)
        columns = [column for columns in self.columns.values() for column in columns]
        for column in columns:
            flat = np.empty((capacity * self.streams, *column.flat.shape[1:]), column.dtype)
            before = column.rows
            column.place(flat)
            for rows in np.array_split(keep, max(1, len(keep) // 4096)):
                column.rows[rows % capacity] = before[rows % self.capacity]
        age = np.zeros((capacity, *self.lead), np.uint8)
        age[keep % capacity] = self._age[keep % self.capacity]
        self._age, self._flat_age = age, age.reshape(-1)
        self.capacity = capacity
        self.place = (self.written - 1) % capacity

    def save(self) -> dict[str, Any]:
        """The rings as far as they are written, without a copy."""
        used = min(self.written, self.capacity)
        return {
            "capacity": np.int64(self.capacity),
            "written": np.int64(self.written),
            "age": self._age[:used],
            "columns": {
                name: {str(i): column.rows[:used] for i, column in enumerate(columns)}
                for name, columns in self.columns.items()
                if columns
            },
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Takes back what `save` gave.

        Raises:
          ValueError: If it is of other fields, shapes, dtypes or streams.
        """
        written = int(state["written"])
        if state["age"].shape[1:] != self.lead:
            raise ValueError(
                f"the saved replay has streams of shape {state['age'].shape[1:]}, and this one of "
                f"{self.lead}: restore it with as many environments."
            )
        for name, columns in self.columns.items():
            saved = state["columns"].get(name, {})
            if len(saved) != len(columns):
                raise ValueError(
                    f"{name} has {len(columns)} leaves here and {len(saved)} in the saved replay."
                )
            for i, column in enumerate(columns):
                array = saved[str(i)]
                if array.shape[1:] != column.rows.shape[1:] or array.dtype != column.dtype:
                    raise ValueError(
                        f"leaf {i} of {name} is {column.dtype}{list(column.rows.shape[1:])} here "
                        f"and {array.dtype}{list(array.shape[1:])} in the saved replay."
                    )
        if int(state["capacity"]) != self.capacity:
            self.written = 0
            self.grow(int(state["capacity"]), 0)
        used = min(written, self.capacity)
        self._age[:used] = state["age"]
        for name, columns in self.columns.items():
            for i, column in enumerate(columns):
                column.rows[:used] = state["columns"][name][str(i)]
        self.written = written
        self.place = (written - 1) % self.capacity

    def _verify(self, leaves: list[Any], place: int) -> None:
        """Compares the stacks of a row with the frames that were kept."""
        for column, leaf in zip(self.columns["observation"], leaves, strict=True):
            if not column.agrees(leaf, place, self._age[place]):
                raise ValueError(
                    f"an observation of shape {column.shape} is declared a stack of {column.stack} "
                    f"frames along axis {column.axis}, but it does not hold the newest frames of "
                    "its episode, oldest first and the first one repeated."
                )
