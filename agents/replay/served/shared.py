"""The replay that many write to, where its rows are kept."""

from __future__ import annotations

import collections
import contextlib
import threading
import time
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np

from ..embedded.embedded_replay import first_capacity, make_windows, row_fields, table_size
from ..embedded.entries import Entries
from ..embedded.rows import Rows
from ..items import Episodes, ReplaySpec, Rollouts, Sample, Sequences
from ..nests import Nest
from ..pace import Pace
from ..remote import RemoteProxy
from . import chunks
from .chunks import Chunk

_ACTIVE_SECONDS, _FORGOTTEN_SECONDS = 1.0, 60.0
_LOST_SECONDS = 3 * chunks.ALIVE_SECONDS
"""Silence after which nobody waits for what a writer has begun."""


class _Source:
    """The rows of one writer."""

    def __init__(self, rows: Rows, windows: Any) -> None:
        self.rows, self.windows = rows, windows
        self.number = 0  # Of the newest chunk.
        self.shift = 0  # Its writer's numbers of rows are less by this.
        self.first = 0  # Row from which on items are whole.
        self.begun = 0  # Items that its writer was let begin and has not written.
        self.before = 0  # `_published` when it was.
        self.heard = time.monotonic()
        # Of each chunk with items: the newest item's key, and the first row.
        self.marks: collections.deque[tuple[int, int]] = collections.deque()

    def oldest_row(self, first_key: int) -> int:
        """The first row that items from `first_key` on need."""
        while self.marks and self.marks[0][0] < first_key:
            self.marks.popleft()
        # Items are found as they end: one found later begins at most a span earlier.
        start = self.marks[0][1] if self.marks else self.rows.written
        oldest = min(start, self.rows.written) - self.windows.span
        return max(0, oldest - (self.rows.depth - 1))


class SharedReplay(RemoteProxy):
    """The items of many writers, oldest first; each writer adds rows at its own speed.

    Its methods may be called from several threads.
    """

    def __init__(
        self,
        spec: ReplaySpec,
        environment_spec: Any,
        extras_spec: Nest = (),
        *,
        num_envs: int | None = None,
        num_writers: int = 1,
        seed: int = 0,
        steps_per_sample: int = 1,
    ) -> None:
        """Makes an empty replay.

        Args:
          spec: What an item is, how many are held, and the pace.
          environment_spec: Its `observations` and `actions` say what rows hold.
          extras_spec: Of what the policy stores beside an action.
          num_envs: N, environments that each writer steps together; None: one, without a dimension
            for it.
          num_writers: How many are expected; others may come and go.
          seed: Of the draws.
          steps_per_sample: K, batches that the learner draws at once.

        Raises:
          ValueError: If the spec does not fit its items, or its pace would come to a halt.
        """
        super().__init__(spec, environment_spec, extras_spec)
        self._arguments = environment_spec, extras_spec
        self._num_envs, self._streams = num_envs, (num_envs or 1) * num_writers
        self._steps_per_sample = steps_per_sample
        self._dispatch = steps_per_sample * spec.batch_size
        self._queued = isinstance(spec.item, Rollouts)
        self._pace = Pace(spec, steps_per_sample)
        self._columns = make_windows(spec.item, num_envs).columns
        self._entries = Entries(
            table_size(spec, self._streams, steps_per_sample),
            {**self._columns, "source": np.int32},
            priority_exponent=spec.priority_exponent,
            seed=seed,
        )
        self._sources: dict[int, _Source] = {}
        self._writers: dict[str, int] = {}
        self._next_source = 0
        # By rank of who draws, items of its newest draw, until it draws again: they wait for the
        # learner, and actors are not to be ahead of what it has learned from.
        self._waiting: dict[int, int] = {}
        self._restored = 0  # The key after the last item that a checkpoint brought back.
        # The key after the last item that the newest parameters of actors have learned from.
        self._published = 0
        self._changed = threading.Condition(threading.RLock())

    # Writing.

    def write(self, writer: str, number: int, chunk: Chunk, seconds: float) -> int | None:
        """Takes a chunk of rows, once, however often it comes.

        Args:
          writer: Name of who wrote it, which no other has ever had.
          number: Of the chunk among its writer's, from 1.
          chunk: The rows, in order.
          seconds: How long to wait at most for the pace to let the writer go on.

        Returns:
          How many rows may follow; None: there is no room for this one yet, and it must come again.
        """
        with self._changed:
            source = self._source(writer)
            if number > source.number:
                if self._queued and not self._changed.wait_for(
                    lambda: len(self) + len(chunk.items[0]) <= self._entries.max_size, seconds
                ):
                    return None
                source.number = number
                if len(chunk.ages):
                    self._take(source, chunk, self._writers[writer])
                    source.begun = max(0, source.begun - len(chunk.items[0]))
                    self._changed.notify_all()
            source.heard = time.monotonic()
            if self.spec.max_ahead is not None and source.begun:
                return self._room(source)
            self._changed.wait_for(lambda: self._may_go_on(source), seconds)
            source.heard = time.monotonic()
            if not self._may_go_on(source):
                return 0
            source.begun, source.before = self._num_envs or 1, self._published
            return self._room(source)

    def hear(self, writer: str, acts: bool) -> None:
        """Takes a sign of life of a writer that has nothing to write yet.

        Args:
          writer: its name.
          acts: False where it begins nothing for now: others need not wait for what it could begin.
        """
        with self._changed:
            if writer in self._writers:
                source = self._sources[self._writers[writer]]
                source.heard = time.monotonic()
                if not acts:
                    source.begun = 0
                    self._changed.notify_all()

    def _may_go_on(self, source: _Source) -> bool:
        """True if a writer may begin an item of each of its environments."""
        if not self.can_insert():
            return False
        most, lost = self.spec.max_ahead, time.monotonic() - _LOST_SECONDS
        if most is None:
            return True
        others = [
            other
            for other in self._sources.values()
            if other is not source and other.begun and other.heard > lost
        ]
        count = self._entries.next + sum(other.begun for other in others)
        # Those of others are to be learned from in time too, after whatever overtakes them.
        oldest = min((other.before for other in others), default=self._published)
        if count + (self._num_envs or 1) - min(oldest, self._published) <= most:
            return True
        # Without another item the learner could draw nothing, for ever.
        return count - self._published < self._dispatch

    def _source(self, writer: str) -> _Source:
        if writer not in self._writers:
            self._forget()
            self._writers[writer] = self._next_source
            self._sources[self._next_source] = self._make_source()
            self._next_source += 1
        return self._sources[self._writers[writer]]

    def _make_source(self) -> _Source:
        windows = make_windows(self.spec.item, self._num_envs)
        fields = row_fields(windows.stored, *self._arguments)
        size = self._entries.max_size
        capacity = first_capacity(self.spec.item, windows.span, size, self._streams)
        source = _Source(Rows(fields, capacity, self._num_envs), windows)
        windows.attach(source.rows, self._entries)
        return source

    def _forget(self) -> None:
        """Frees the rows of writers that are gone and have no items left."""
        now, names = time.monotonic(), {number: name for name, number in self._writers.items()}
        for number, source in list(self._sources.items()):
            source.oldest_row(self._entries.first)
            if not source.marks and now - source.heard > _FORGOTTEN_SECONDS:
                del self._sources[number]
                self._writers.pop(names.get(number, ""), None)

    def _take(self, source: _Source, chunk: Chunk, number: int) -> None:
        rows = source.rows
        follows = rows.written > 0 and chunk.row + source.shift == rows.written
        if not follows:
            # The first, or the first since this server was started again: what came before is
            # lost, and with it the frames of the first stacks.
            source.shift = rows.written - chunk.row
            source.first = rows.written + (rows.depth - 1 if chunk.row else 0)
        oldest, stop = source.oldest_row(self._entries.first), rows.written + len(chunk.ages)
        if stop > oldest + rows.capacity:
            more = rows.capacity + max(64, rows.capacity // 4)
            rows.grow(max(more, stop - oldest + 64), oldest)
        chunks.put(chunk, rows, follows)
        values = [column.copy() for column in chunk.items]
        place = list(self._columns).index("row")
        values[place] += source.shift
        kept = values[place] >= source.first
        if kept.any():
            values = [column[kept] for column in values]
            count = len(values[place])
            self._entries.insert((*values, number), count)
            source.marks.append((self._entries.next - 1, int(values[place].min())))

    def _room(self, source: _Source) -> int:
        """Rows that a writer which may go on may add before it must ask again."""
        item, ratio = self.spec.item, self.spec.samples_per_insert
        if isinstance(item, Rollouts):
            # To the end of the one that is begun: each that follows is asked for.
            written = source.rows.written - source.shift
            return item.length - max(0, written - 1) % item.length
        if ratio is None:
            return chunks.ROWS
        entries, now = self._entries, time.monotonic()
        left = self._pace.tolerance - self._pace.debt(entries.next, self._taken())
        rows = item.period if isinstance(item, Sequences) else 1
        if isinstance(item, Episodes):
            rows = 2
        active = sum(now - one.heard < _ACTIVE_SECONDS for one in self._sources.values()) or 1
        room = left / ratio * rows / (active * (self._num_envs or 1))
        return max(1, min(chunks.ROWS, int(room)))

    def can_insert(self) -> bool:
        """True if the pace lets actors take another step."""
        if self._queued:
            return len(self) < self._dispatch
        return self._pace.can_insert(self._entries.next, self._taken())

    def _taken(self) -> int:
        """Items drawn, but for those that wait for the learner."""
        return self._entries.sampled - sum(self._waiting.values())

    # Drawing.

    def draw(
        self, batch_size: int, seconds: float, most: int = 1, drawn: int = 0, rank: int = 0
    ) -> Sample | None:
        """Draws K batches, or several times K, [D * K, B, ...].

        Args:
          batch_size: B, all or one host's share.
          seconds: How long to wait at most for the pace to allow it.
          most: D at most; as many are drawn as the pace allows, for which nobody waits.
          drawn: Of rollouts, the key after the last that the caller has. A checkpoint brings back
            items that were drawn after it was written; those that the caller has are dropped.
            0: it has none, and what another had drawn is lost.
          rank: Of the caller among the learner's processes. Until it calls again, what it has drawn
            counts as not yet with the learner: one dispatch, however many it reads ahead.

        Returns:
          None: it has not allowed even K.
        """
        count = self._steps_per_sample * batch_size
        with self._changed:
            if self._queued:
                self._drop_until(drawn)
                if not drawn:
                    self._published = self._entries.first
            if self._waiting.pop(rank, 0):
                self._changed.notify_all()
            if not self._changed.wait_for(lambda: self._can_draw(count), seconds):
                return None
            times = next(d for d in range(most, 0, -1) if d == 1 or self._can_draw(d * count))
            leading = (times * self._steps_per_sample, batch_size)
            draw = self._entries.take if self._queued else self._entries.draw
            slots, info = draw(leading)
            sample = Sample(info, self._gather(slots))
            # One dispatch of each is no more than the least tolerance: nobody waits for ever.
            self._waiting[rank] = count
            self._changed.notify_all()
            return sample

    def _drop_until(self, drawn: int) -> None:
        """Drops items before a key that a checkpoint brought back."""
        entries = self._entries
        if (first := min(drawn, self._restored)) > entries.first:
            entries.sampled += first - entries.first
            entries.first = self._published = first
            self._changed.notify_all()

    def published(self, before: int) -> None:
        """Takes that actors can have parameters which have learned from all rollouts before a key.

        Where `ReplaySpec.max_ahead` is set, actors that wait go on by this.
        """
        with self._changed:
            # A replay that went on from a checkpoint may give keys a second time.
            self._published = min(before, self._entries.first)
            self._changed.notify_all()

    def _can_draw(self, count: int) -> bool:
        entries = self._entries
        if self._queued:
            return len(entries) >= count
        return self._pace.can_sample(len(entries), entries.next, entries.sampled, count)

    def _gather(self, slots: np.ndarray) -> Any:
        """The items in slots of the table, each from its writer's rows."""
        owners = self._entries.columns["source"].take(slots)
        first = int(owners.flat[0])
        if (owners == first).all():
            return self._sources[first].windows.gather(slots)
        order = owners.reshape(-1).argsort(kind="stable")
        found, starts = np.unique(owners.reshape(-1)[order], return_index=True)
        groups = np.split(order, starts[1:])
        whole: list[np.ndarray] = []
        for owner, group in zip(found.tolist(), groups, strict=True):
            part = self._sources[owner].windows.gather(slots.reshape(-1)[group])
            leaves, structure = jax.tree.flatten(part)
            if not whole:
                whole = [np.empty((slots.size, *leaf.shape[1:]), leaf.dtype) for leaf in leaves]
            for target, leaf in zip(whole, leaves, strict=True):
                target[group] = leaf
        shaped = [leaf.reshape(*slots.shape, *leaf.shape[1:]) for leaf in whole]
        return jax.tree.unflatten(structure, shaped)

    def update_priorities(self, keys: np.ndarray, priorities: np.ndarray) -> None:
        """See `EmbeddedReplay.update_priorities`."""
        with self._changed:
            self._entries.update_priorities(keys, priorities)

    # What there is.

    def numbers(self) -> tuple[int, int, int]:
        """Items held, ever inserted and ever drawn."""
        return len(self._entries), self._entries.next, self._entries.sampled

    def _look(self) -> tuple[int, int, int]:
        return self.numbers()

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """While it lasts nothing is written or drawn."""
        with self._changed:
            yield

    def save(self) -> dict[str, Any]:
        """All that the replay holds, as `EmbeddedReplay.save`: within `paused`."""
        sources, writers = {}, {}
        names = {number: name for name, number in self._writers.items()}
        for number, source in self._sources.items():
            source.oldest_row(self._entries.first)
            # A writer that has no items here may have begun one.
            if source.marks or number in names:
                sources[str(number)] = {
                    "rows": source.rows.save(),
                    "marks": np.array(source.marks, np.int64).reshape(-1, 2),
                }
            if number in names:
                numbers = [number, source.number, source.shift, source.first]
                writers[names[number]] = np.array(numbers, np.int64)
        return {
            "sources": sources,
            "writers": writers,
            "next": np.int64(self._next_source),
            "entries": self._entries.save(),
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Takes back what `save` gave, with whatever number of writers, or an `EmbeddedReplay`.

        Writers that are still there go on; a chunk that is in the state already is not taken again.

        Raises:
          ValueError: If it is the state of another kind of replay.
        """
        if "rows" in state:
            state = _of_one_writer(state)
        with self._changed:
            self._sources, self._writers = {}, {}
            self._next_source = int(state["next"])
            for number, saved in state["sources"].items():
                source = self._sources[int(number)] = self._make_source()
                source.rows.restore(saved["rows"])
                source.marks.extend(map(tuple, np.asarray(saved["marks"]).tolist()))
            for name, values in state.get("writers", {}).items():
                number, *numbers = np.asarray(values).tolist()
                source, self._writers[name] = self._sources[number], number
                source.number, source.shift, source.first = numbers
            self._entries.restore(state["entries"])
            self._restored = self._entries.next
            self._published = self._entries.first


def _of_one_writer(state: dict[str, Any]) -> dict[str, Any]:
    """Converts a state of `EmbeddedReplay.save` into that of a shared replay with one writer."""
    entries = state["entries"]
    columns, after = entries["columns"], int(entries["next"])
    held = np.arange(int(entries["first"]), after) % int(entries["max_size"])
    marks = [[after - 1, int(columns["row"][held].min())]] if len(held) else []
    columns = {**columns, "source": np.zeros(len(columns["row"]), np.int32)}
    return {
        "sources": {
            "0": {"rows": state["rows"], "marks": np.array(marks, np.int64).reshape(-1, 2)}
        },
        "next": np.int64(1),
        "entries": {**entries, "columns": columns},
    }
