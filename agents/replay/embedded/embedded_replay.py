"""The replay inside the learner's process."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from dm_env import specs

from ..items import Episodes, Item, ReplaySpec, Rollouts, Sample, Sequences, Transitions
from ..nests import Nest
from ..pace import Pace
from ..sequences import SequenceWindows
from ..shapes import held_bytes, sample_shapes
from ..transitions import TransitionWindows
from .adder import EmbeddedAdder
from .entries import Entries
from .rows import Rows

_OUTCOMES = {
    "reward": specs.Array((), np.float32),
    "discount": specs.Array((), np.float32),
    "step_type": specs.Array((), np.int32),
}


def make_windows(item: Item, num_envs: int | None) -> TransitionWindows | SequenceWindows:
    """Builds the finder of items in the rows of N streams (None: one, without a dimension)."""
    if isinstance(item, Transitions):
        return TransitionWindows(item, num_envs)
    return SequenceWindows(item, num_envs)


def row_fields(
    stored: tuple[str, ...], environment_spec: Any, extras_spec: Nest
) -> dict[str, Nest]:
    """Returns the specs of the fields of a row by name.

    Args:
      stored: of reward, discount and step type, what rows hold.
      environment_spec: its `observations` and `actions` are held by every row.
      extras_spec: of what the policy stores beside an action.
    """
    return {
        "observation": environment_spec.observations,
        "action": environment_spec.actions,
        "extras": extras_spec,
        **{name: _OUTCOMES[name] for name in stored},
    }


def table_size(spec: ReplaySpec, streams: int, steps_per_sample: int) -> int:
    """Items that a table of `streams` streams must hold.

    Raises:
      ValueError: If the spec has an option of tables, but its items wait in a queue.
    """
    if not isinstance(spec.item, Rollouts):
        return spec.max_size
    if spec.priority_exponent is not None or spec.samples_per_insert is not None:
        raise ValueError(
            "priority_exponent and samples_per_insert must be None: rollouts are drawn once each, "
            "in order."
        )
    # A window of every stream comes at once, the last while a dispatch is all but complete.
    dispatch = steps_per_sample * spec.batch_size
    return dispatch + streams - math.gcd(dispatch, streams)


def first_capacity(item: Item, span: int, max_size: int, streams: int) -> int:
    """Rows of each stream to begin with: enough for `max_size` items of ordinary episodes.

    Only what is written takes memory. Episodes of a few steps need more rows, since their last one
    begins no item; then the rings grow.
    """
    per_item = 1
    if isinstance(item, Sequences):
        per_item = item.period
    elif isinstance(item, Rollouts):
        per_item = item.length
    elif isinstance(item, Episodes):
        per_item = -(-item.max_length // 8)
    return -(-max_size * per_item * 17 // (16 * streams)) + 4 * span + 64


class EmbeddedReplay:
    """A replay in plain memory, written and read without serialising anything.

    Every row is stored once, however many items it is part of, and stacks of frames as single
    frames. Batches are new arrays, aligned as XLA wants them, and belong to the caller. The same
    seed and the same calls give the same batches. Calls from several threads are kept apart by a
    lock.
    """

    def __init__(
        self,
        spec: ReplaySpec,
        environment_spec: Any,
        extras_spec: Nest = (),
        *,
        num_envs: int | None = None,
        seed: int = 0,
        steps_per_sample: int = 1,
    ) -> None:
        """Makes an empty replay.

        Args:
          spec: What an item is, how many are held, and the pace.
          environment_spec: Its `observations` and `actions` say what rows hold.
          extras_spec: Of what the policy stores beside an action.
          num_envs: N, environments stepped together; None: one, whose values have no dimension
            for it.
          seed: Of the draws.
          steps_per_sample: K, batches that the learner draws at once.

        Raises:
          ValueError: If the spec does not fit the streams, or its pace would come to a halt.
        """
        streams = num_envs or 1
        if num_envs is not None and num_envs < 1:
            raise ValueError(f"num_envs is {num_envs}; it must be at least 1, or None.")
        if steps_per_sample < 1:
            raise ValueError(f"steps_per_sample is {steps_per_sample}; it must be at least 1.")
        self.spec = spec
        self._specs = environment_spec, extras_spec
        self._steps_per_sample = steps_per_sample
        self._dispatch = steps_per_sample * spec.batch_size
        self._queued = isinstance(spec.item, Rollouts)
        max_size = table_size(spec, streams, steps_per_sample)
        self._windows = make_windows(spec.item, num_envs)
        self._pace = Pace(spec, steps_per_sample)
        self._entries = Entries(
            max_size,
            self._windows.columns,
            priority_exponent=spec.priority_exponent,
            seed=seed,
        )
        fields = row_fields(self._windows.stored, environment_spec, extras_spec)
        capacity = first_capacity(spec.item, self._windows.span, max_size, streams)
        self._rows = Rows(fields, capacity, num_envs)
        self._windows.attach(self._rows, self._entries)
        self._lock = threading.RLock()
        self._adder = EmbeddedAdder(
            self._rows, self._windows, self._lock, self._refuse_overrun, self._oldest_row
        )

    def adder(self) -> EmbeddedAdder:
        """Returns the adder of this replay: one for all streams, which are in lockstep."""
        return self._adder

    def reset_adder(self) -> None:
        """Drops windows that are not complete; `add_first` must come next."""
        self._adder.reset()

    def can_insert(self) -> bool:
        """True if the pace lets actors take another step."""
        if self._queued:
            return len(self._entries) < self._dispatch
        return self._pace.can_insert(self._entries.next, self._entries.sampled)

    def can_sample(self, num_batches: int = 1) -> bool:
        """True if the pace lets the learner draw `num_batches` batches."""
        wanted, entries = num_batches * self.spec.batch_size, self._entries
        if self._queued:
            return len(entries) >= wanted
        return self._pace.can_sample(len(entries), entries.next, entries.sampled, wanted)

    def wait(self, seconds: float) -> bool:
        """True if a dispatch's batches can be drawn. Never waits: no other thread inserts."""
        return self.can_sample(self._steps_per_sample)

    def sample(self, num_batches: int | None = None) -> Sample:
        """Draws a batch, [B, ...]; with `num_batches` K, as many at once, [K, B, ...].

        The pace is not asked here: see `can_sample`.

        Raises:
          ValueError: If fewer items are held than the spec's `min_size` or, of rollouts, than
            are asked for.
        """
        batch = self.spec.batch_size
        leading = (batch,) if num_batches is None else (num_batches, batch)
        with self._lock:
            held = len(self._entries)
            needed = self.spec.min_size
            if self._queued:
                needed = batch * (num_batches or 1)
            if held < needed:
                raise ValueError(
                    f"the replay holds {held} items and needs {needed} before it can be sampled: "
                    "ask can_sample first."
                )
            slots, info = (self._entries.take if self._queued else self._entries.draw)(leading)
            return Sample(info, self._windows.gather(slots))

    def sample_shapes(self, num_batches: int | None = None) -> Sample:
        """Returns the shapes and dtypes of `sample`, as `jax.ShapeDtypeStruct`."""
        return sample_shapes(self.spec, *self._specs, num_batches)

    def place_batches(self, place: Callable[[Sample], Sample]) -> None:
        """Nothing is read ahead here."""

    def dataset(self, num_batches: int | None = None) -> Iterator[Sample]:
        """Batches without end, as `sample` gives them."""
        while True:
            yield self.sample(num_batches)

    def update_priorities(self, keys: np.ndarray, priorities: np.ndarray) -> None:
        """Gives items new priorities, to which the exponent is applied here.

        A new item has the largest priority ever given to one (at first 1), so that each is likely
        drawn soon. Keys of items that are gone are ignored; of a key named twice, the last counts.

        Args:
          keys: As `SampleInfo` has them, any shape.
          priorities: As many numbers of at least 0.

        Raises:
          ValueError: If a priority is negative or not finite, or the replay is uniform.
        """
        with self._lock:
            self._entries.update_priorities(keys, priorities)

    def save(self) -> dict[str, Any]:
        """All that the replay holds, as dicts of numpy arrays.

        The large arrays are views of its memory: write them before anything is added. Windows that
        are not complete are not part of it, as no environment can go on where it was.
        """
        with self._lock:
            return {"rows": self._rows.save(), "entries": self._entries.save()}

    def restore(self, state: dict[str, Any]) -> None:
        """Takes back what `save` gave, or a `SharedReplay` of one writer; `add_first` must come
        next.

        Raises:
          ValueError: If it is the state of another kind of replay.
        """
        if "sources" in state:
            every = [*state["sources"].values()]
            held = [one for one in every if len(one["marks"])]
            if len(held or every) != 1:
                raise ValueError(
                    f"the saved replay has items of {len(held)} writers; this one can hold those "
                    "of one."
                )
            (source,) = held or every
            columns = dict(state["entries"]["columns"])
            del columns["source"]
            state = {"rows": source["rows"], "entries": {**state["entries"], "columns": columns}}
        with self._lock:
            self._rows.restore(state["rows"])
            self._entries.restore(state["entries"])
            self._adder.reset()

    @property
    def num_bytes(self) -> int:
        """Approximate number of bytes of the items held."""
        return held_bytes(self.spec, *self._specs, len(self))

    def flush(self) -> None:
        """Nothing waits to be written here."""

    def close(self) -> None:
        """Nothing is to be closed here."""

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def size(self) -> int:
        """Items held."""
        return len(self._entries)

    @property
    def inserted(self) -> int:
        """Items ever inserted."""
        return self._entries.next

    @property
    def sampled(self) -> int:
        """Items ever drawn."""
        return self._entries.sampled

    @property
    def observed_samples_per_insert(self) -> float:
        """Items drawn per item inserted since the replay held its `min_size`; 0 before."""
        since = self._entries.next - (0 if self._queued else self.spec.min_size)
        return self._entries.sampled / since if since > 0 else 0.0

    def _refuse_overrun(self) -> None:
        """Raises ValueError where another row could overwrite rollouts that wait."""
        if self._queued and not self.can_insert():
            raise ValueError(
                "the rollouts that wait to be learned from leave no room: ask can_insert, and "
                "sample, before the environments go on."
            )

    def _oldest_row(self) -> int:
        """The first row of the items held: they are inserted as they end, so that one inserted
        later begins at most a span earlier."""
        entries = self._entries
        if not len(entries):
            return self._rows.written
        row = int(entries.columns["row"][entries.first % entries.max_size])
        return row - self._windows.span
