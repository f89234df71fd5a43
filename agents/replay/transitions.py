"""Items that are n-step transitions."""

from __future__ import annotations

from typing import Any

import numpy as np
from dm_env import StepType

from .embedded.entries import Entries, ItemSink
from .embedded.rows import Rows
from .items import Transition, Transitions
from .nests import Batches

_FIRST, _LAST = int(StepType.FIRST), int(StepType.LAST)


class TransitionWindows:
    """Finds the transitions in the rows as they are written, and gathers them again.

    Returns are summed as rewards come, so that drawing an item reads its first and its last row and
    nothing between them.
    """

    stored: tuple[str, ...] = ()  # Of reward, discount and step type, what rows must hold.

    def __init__(self, item: Transitions, num_envs: int | None) -> None:
        self._n = item.n_step
        self._gamma = item.discount
        self.span = item.n_step + 1
        self.columns = {"row": np.int64, "reward": np.float32, "discount": np.float32}
        self._has_stream = (num_envs or 1) > 1
        if self._has_stream:
            self.columns["stream"] = np.int32
        self._has_span = self._n > 1
        if self._has_span:
            self.columns["span"] = np.int32
        streams = num_envs or 1
        self._streams = np.arange(streams)
        # Of one stream: [row, return, discount] of every transition in the making, oldest first.
        self._pending: list[list[Any]] = []
        # Of several: the same, by row mod n and stream; and the actions of the episode so far.
        self._returns = np.zeros((self._n, streams))
        self._discounts = np.ones((self._n, streams))
        self._actions = np.zeros(streams, np.int64)

    def insert_into(self, sink: ItemSink) -> None:
        """Takes what items are inserted into as they are found."""
        self._sink = sink

    def attach(self, rows: Rows, entries: Entries) -> None:
        """Takes the rows to read and the table to insert into."""
        self._rows, self._entries = rows, entries
        self.insert_into(entries)
        kinds = {
            name: [(column.shape, column.dtype) for column in columns]
            for name, columns in rows.columns.items()
        }
        self._counts = [len(kinds[name]) for name in ("observation", "action", "extras")]
        numbers = [((), np.float32)] * 2
        self._batches = Batches(
            [*kinds["observation"] * 2, *kinds["action"], *kinds["extras"], *numbers]
        )

    def restart(self, row: int) -> None:
        """Forgets transitions in the making: every stream begins an episode with `row`."""
        del row
        self._pending.clear()
        self._actions[:] = 0

    def advance(self, row: int, reward: Any, discount: Any, kinds: list[int], mid: bool) -> None:
        """Inserts what `row`, just begun with these step types, completes.

        Args:
          row: Its number.
          reward: That came with it, [N], or a number where there is one stream.
          discount: That came with it, likewise.
          kinds: Its step types.
          mid: Whether it and the row before are in the middle of every episode.
        """
        if not self._has_stream:
            if kinds[0] != _FIRST:
                self._advance_one(row, float(reward), float(discount), kinds[0] == _LAST)
        elif not self._has_span:
            if mid:
                self._insert(row - 1, self._streams, reward, discount, 1)
            else:
                acted = np.flatnonzero(np.array(kinds) != _FIRST)
                self._insert(row - 1, acted, reward[acted], discount[acted], 1)
        else:
            self._advance_all(row, reward, discount, kinds, mid)

    def _advance_one(self, row: int, reward: float, discount: float, ends: bool) -> None:
        insert = self._sink.insert_one
        if not self._has_span:
            insert((row - 1, reward, discount))
            return
        pending = self._pending
        pending.append([row - 1, 0.0, 1.0])
        for item in pending:
            item[1] += item[2] * reward
            item[2] *= discount
        if ends:
            for start, total, product in pending:
                insert((start, total, product, row - start))
            pending.clear()
        elif len(pending) == self._n:
            start, total, product = pending.pop(0)
            insert((start, total, product, row - start))
        for item in pending:
            item[2] *= self._gamma

    def _advance_all(
        self, row: int, reward: np.ndarray, discount: np.ndarray, kinds: list[int], mid: bool
    ) -> None:
        n, returns, discounts, actions = self._n, self._returns, self._discounts, self._actions
        returns[(row - 1) % n] = 0.0
        discounts[(row - 1) % n] = 1.0
        returns += discounts * reward
        discounts *= discount
        actions += 1
        oldest = row % n  # Of row - n.
        complete = actions >= n
        if not mid:
            now = np.array(kinds)
            actions *= now != _FIRST
            complete = (actions >= n) & (now != _LAST)
        if complete.all():
            self._insert(row - n, self._streams, returns[oldest], discounts[oldest], n)
        else:
            at = np.flatnonzero(complete)
            self._insert(row - n, at, returns[oldest, at], discounts[oldest, at], n)
        if not mid:
            for stream in np.flatnonzero(now == _LAST):
                for span in range(min(n, int(actions[stream])), 0, -1):
                    place, one = (row - span) % n, slice(stream, stream + 1)
                    self._insert(
                        row - span,
                        self._streams[one],
                        returns[place, one],
                        discounts[place, one],
                        span,
                    )
        discounts *= self._gamma

    def _insert(
        self, row: int, streams: np.ndarray, reward: np.ndarray, discount: np.ndarray, span: int
    ) -> None:
        if len(streams):
            values = (row, reward, discount, streams, span)
            self._sink.insert(values if self._has_span else values[:-1], len(streams))

    def gather(self, slots: np.ndarray) -> Transition:
        """The transitions in slots of the table, any shape."""
        rows, columns = self._rows, self._entries.columns
        streams, total = rows.streams, rows.capacity * rows.streams
        first = columns["row"].take(slots)
        first %= rows.capacity
        if streams > 1:
            first *= streams
            first += columns["stream"].take(slots)
        if self._has_span:
            last = first + columns["span"].take(slots) * streams
        else:
            last = first + streams
        last -= (last >= total) * total
        leaves = self._batches.make(slots.shape)
        observations, actions, extras = self._counts
        observation, rest = leaves[:observations], leaves[observations:]
        next_observation, rest = rest[:observations], rest[observations:]
        action, rest = rest[:actions], rest[actions:]
        extra, (reward, discount) = rest[:extras], rest[extras:]
        rows.gather("observation", first, observation)
        rows.gather("observation", last, next_observation)
        rows.gather("action", first, action)
        rows.gather("extras", first, extra)
        columns["reward"].take(slots, out=reward, mode="clip")
        columns["discount"].take(slots, out=discount, mode="clip")
        structures = rows.structures
        return Transition(
            observation=structures["observation"].unflatten(observation),
            action=structures["action"].unflatten(action),
            reward=reward,
            discount=discount,
            next_observation=structures["observation"].unflatten(next_observation),
            extras=structures["extras"].unflatten(extra),
        )
