"""Items that are windows of rows: sequences, episodes and rollouts."""

from __future__ import annotations

from typing import Any

import numpy as np
from dm_env import StepType

from .embedded.entries import Entries, ItemSink
from .embedded.rows import Rows
from .items import WAITING, Episodes, Rollouts, Sequence, Sequences
from .nests import Batches

_FIRST, _LAST = int(StepType.FIRST), int(StepType.LAST)
_FIELDS = ("observation", "action", "extras", "reward", "discount", "step_type")
_OUTCOMES = ("action", "extras", "reward", "discount")


class SequenceWindows:
    """Finds windows in the rows as they are written, and gathers them again.

    Each stream has one window that is open: the oldest not yet complete.
    """

    stored: tuple[str, ...] = ("reward", "discount", "step_type")

    def __init__(self, item: Sequences | Episodes | Rollouts, num_envs: int | None) -> None:
        self._is_rollout = isinstance(item, Rollouts)
        self._is_episode = isinstance(item, Episodes)
        if isinstance(item, Sequences):
            self._length, self._period = item.length, item.period
        elif isinstance(item, Episodes):
            self._length, self._period = item.max_length, item.max_length
        else:
            self._length, self._period = item.length + 1, item.length
        self.span = self._length
        self.columns = {"row": np.int64, "stream": np.int32, "span": np.int32}
        self._streams = np.arange(num_envs or 1)
        self._open = [0] * len(self._streams)
        self._ages = np.arange(self._length)

    def insert_into(self, sink: ItemSink) -> None:
        """Takes what items are inserted into as they are found."""
        self._sink = sink

    def attach(self, rows: Rows, entries: Entries) -> None:
        """Takes the rows to read and the table to insert into."""
        self._rows, self._entries = rows, entries
        self.insert_into(entries)
        shapes: list[tuple[tuple[int, ...], Any]] = [
            ((self._length, *column.shape), column.dtype)
            for name in _FIELDS
            for column in rows.columns[name]
        ]
        self._batches = Batches([*shapes, ((self._length,), np.float32)])

    def restart(self, row: int) -> None:
        """Forgets open windows: every stream begins an episode with `row`."""
        self._open = [row] * len(self._streams)

    def advance(self, row: int, reward: Any, discount: Any, kinds: list[int], mid: bool) -> None:
        """Inserts what `row`, just begun with these step types, completes.

        Args:
          row: Its number.
          reward: Not needed here.
          discount: Not needed here.
          kinds: Its step types.
          mid: Not needed here.

        Raises:
          ValueError: If an episode is longer than an item may be.
        """
        del reward, discount, mid
        if self._is_rollout:
            # A window needs the observation of its last row and nothing more of it.
            if row - self._open[0] == self._period:
                count = len(self._streams)
                self._sink.insert((self._open[0], self._streams, self._length), count)
                self._open = [row] * count
            return
        for stream, kind in enumerate(kinds):
            start = self._open[stream]
            if kind == _FIRST:
                self._open[stream] = row
            elif self._is_episode:
                if row - start >= self._length:
                    raise ValueError(
                        f"an episode has more than {self._length} rows, the max_length of "
                        "Episodes. Give it the environment's limit of steps plus 1."
                    )
                if kind == _LAST:
                    self._sink.insert_one((start, stream, row + 1 - start))
            else:
                # Row `row` has no action yet, so that a window is complete before it.
                if start + self._length == row:
                    self._sink.insert_one((start, stream, self._length))
                    self._open[stream] = start = start + self._period
                if kind == _LAST:
                    self._sink.insert_one((start, stream, row + 1 - start))

    def gather(self, slots: np.ndarray) -> Sequence:
        """The windows in slots of the table, any shape."""
        rows, columns = self._rows, self._entries.columns
        spans = columns["span"].take(slots)
        seen = self._ages < spans[..., np.newaxis]
        steps: np.ndarray = columns["row"].take(slots)[..., np.newaxis] + np.minimum(
            self._ages, spans[..., np.newaxis] - 1
        )
        steps %= rows.capacity
        steps *= rows.streams
        steps += columns["stream"].take(slots)[..., np.newaxis]
        if self._is_rollout:
            seen = rows.columns["step_type"][0].flat.take(steps) != WAITING
        leaves = self._batches.make(slots.shape)
        padding = None if seen.all() else ~seen
        fields, at = {}, 0
        for name in _FIELDS:
            outs = leaves[at : at + len(rows.columns[name])]
            at += len(outs)
            rows.gather(name, steps, outs)
            if padding is not None:
                for out in outs:
                    out[padding] = _LAST if name == "step_type" else 0
            if self._is_rollout and name in _OUTCOMES:
                for out in outs:
                    np.moveaxis(out, slots.ndim, 0)[-1] = 0
            fields[name] = rows.structures[name].unflatten(outs)
        mask = leaves[-1]
        mask[...] = seen
        return Sequence(**fields, mask=mask)
