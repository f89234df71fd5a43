"""The replay in a Reverb server: its tables, what actors write with, and what the learner reads.

The items, their order and the draws are those of the embedded replay: the same code finds the
windows, and the same golden cases test both. acme's adders are not used, since they also write
shortened windows at the start of an episode, repeat the frames of stacks and know no mask; what is
written here is read by acme's and Reverb's datasets alike, as the tables carry their signatures.
Importing this module imports TensorFlow.
"""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import dm_env
import numpy as np
import reverb
import tensorflow as tf
from dm_env import StepType

from .items import ReplaySpec, Sample, SampleInfo, Transitions
from .nests import Nest
from .pace import tolerance
from .sequences import SequenceWindows
from .transitions import TransitionWindows
from .wire import Wire

TABLE = "replay"
LARGEST = "largest_priority"
_FIRST, _LAST = int(StepType.FIRST), int(StepType.LAST)
_PATIENCE_MS = 400  # How long an actor or the reader waits before it looks around.
_IN_FLIGHT = 4  # Items of one stream that the server has not confirmed yet.
_FRESH_SECONDS = 0.5  # How old the server's numbers may be.


def make_tables(
    spec: ReplaySpec, environment_spec: Any, extras_spec: Nest = (), steps_per_dispatch: int = 1
) -> list[reverb.Table]:
    """The tables of a spec's replay, for a `reverb.Server`.

    Args:
        spec: What an item is, how many are held, and the pace.
        environment_spec: As `EmbeddedReplay` takes it.
        extras_spec: As `EmbeddedReplay` takes it.
        steps_per_dispatch: K, batches that the learner draws at once.

    Raises:
        ValueError: If the pace would come to a halt.
    """
    wire = Wire(spec, environment_spec, extras_spec)
    signature = {
        name: tf.TensorSpec(shape, dtype, name) for name, (shape, dtype) in wire.columns.items()
    }
    if wire.is_rollout:
        # The batch that is put together waits at the reader: more in the table would be older.
        return [reverb.Table.queue(TABLE, 1, signature=signature)]
    sampler = reverb.selectors.Uniform()
    if spec.priority_exponent is not None:
        sampler = reverb.selectors.Prioritized(spec.priority_exponent)
    tables = [
        reverb.Table(
            TABLE,
            sampler=sampler,
            remover=reverb.selectors.Fifo(),
            max_size=spec.max_size,
            rate_limiter=_limiter(spec, steps_per_dispatch),
            signature=signature,
        )
    ]
    if spec.priority_exponent is not None:
        # Holds one number, the largest priority, which actors give to new items.
        tables.append(
            reverb.Table(
                LARGEST,
                sampler=reverb.selectors.Uniform(),
                remover=reverb.selectors.Fifo(),
                max_size=1,
                rate_limiter=reverb.rate_limiters.MinSize(1),
                signature=tf.TensorSpec((), tf.float64),
            )
        )
    return tables


def _limiter(spec: ReplaySpec, steps_per_dispatch: int) -> reverb.rate_limiters.RateLimiter:
    """Reverb's pace, which as the embedded one's never lets the learner run ahead.

    The reader takes items one by one as the pace allows and waits until it has a batch. So the
    tolerance need not hold a dispatch, and by default is small enough for the ratio to be within a
    few per cent of its target from the first thousand items on.
    """
    ratio = spec.samples_per_insert
    if ratio is None:
        return reverb.rate_limiters.MinSize(spec.min_size)
    least = 2.0 * max(1.0, ratio)
    room = spec.tolerance
    if room is None:
        room = max(least, min(tolerance(spec, steps_per_dispatch), 25.0 * ratio))
    elif room < least:
        raise ValueError(
            f"tolerance is {room} drawn items at {ratio} samples per insert; Reverb needs at least "
            f"{least}, or it may come to a halt."
        )
    start = spec.min_size * ratio
    return reverb.rate_limiters.SampleToInsertRatio(ratio, spec.min_size, (start, start + room))


class ReverbAdder:
    """Writes the steps of an actor's environments, each through a writer of its own.

    It has the calls of `EmbeddedAdder`. While the pace, or a server that does not answer, holds it
    up, it calls `while_waiting` every half second, which may raise to end the wait. When a server
    is back after a failure, each stream goes on with its next episode.
    """

    def __init__(
        self,
        spec: ReplaySpec,
        environment_spec: Any,
        extras_spec: Nest,
        address: str,
        *,
        num_envs: int | None = None,
        while_waiting: Callable[[], None] | None = None,
    ) -> None:
        """Opens nothing yet.

        Args:
            spec: As the server's tables were made from.
            environment_spec: Likewise.
            extras_spec: Likewise.
            address: Of the server, host:port.
            num_envs: N, or None for one environment whose values have no dimension for it.
            while_waiting: Called again and again during a wait.
        """
        self._wire = Wire(spec, environment_spec, extras_spec)
        self._lead = () if num_envs is None else (num_envs,)
        self._wait = while_waiting or (lambda: None)
        self._largest = _LargestPriority(address) if spec.priority_exponent is not None else None
        self._streams = [
            _Stream(spec, self._wire, reverb.Client(address), self._largest)
            for _ in range(num_envs or 1)
        ]
        self._checked = False

    def add_first(self, timestep: dm_env.TimeStep) -> None:
        """Begins an episode in every stream.

        Raises:
            ValueError: If the time step is not the first of an episode, or does not fit the spec.
        """
        if np.any(np.asarray(timestep.step_type) != _FIRST):
            raise ValueError(f"add_first got the step type {timestep.step_type}, not FIRST.")
        self._wire.structures["observation"].check(timestep.observation, self._lead)
        observation = self._rows("observation", timestep.observation)
        for i, stream in enumerate(self._streams):
            self._guard(stream, stream.first, observation[i], not self._lead)

    def add(self, action: Nest, next_timestep: dm_env.TimeStep, extras: Nest = ()) -> None:
        """Adds an action and what came of it.

        Raises:
            ValueError: If values do not fit their specs, or no episode was begun.
        """
        structures = self._wire.structures
        if not self._checked:
            structures["action"].check(action, self._lead)
            structures["extras"].check(extras, self._lead)
            self._checked = True
        answers = [
            a + e
            for a, e in zip(self._rows("action", action), self._rows("extras", extras), strict=True)
        ]
        observations = self._rows("observation", next_timestep.observation)
        rewards = np.reshape(next_timestep.reward, -1).tolist()
        discounts = np.reshape(next_timestep.discount, -1).tolist()
        kinds = np.reshape(np.asarray(next_timestep.step_type, np.int32), -1).tolist()
        rows = zip(answers, rewards, discounts, observations, kinds, strict=True)
        for stream, row in zip(self._streams, rows, strict=True):
            self._guard(stream, stream.add, *row)

    def reset(self) -> None:
        """Drops what is not complete; `add_first` must come next."""
        for stream in self._streams:
            stream.pause()

    def flush(self, timeout_ms: int | None = None) -> None:
        """Waits until the server has all complete items."""
        for stream in self._streams:
            stream.flush(0, timeout_ms)

    def close(self) -> None:
        """Sends what is complete, for at most a moment, and closes the writers."""
        for stream in self._streams:
            with contextlib.suppress(reverb.ReverbError, RuntimeError):
                stream.flush(0, _PATIENCE_MS)
            stream.drop()

    def _rows(self, name: str, value: Nest) -> list[list[np.ndarray]]:
        """For every stream the leaves of a field, as rows keep them."""
        leaves = self._wire.leaves[name]
        values = (
            [np.asarray(part) for part in self._wire.structures[name].flatten(value)]
            if leaves
            else []
        )
        if not self._lead:
            return [[leaf.newest(part) for leaf, part in zip(leaves, values, strict=True)]]
        return [
            [leaf.newest(part[i]) for leaf, part in zip(leaves, values, strict=True)]
            for i in range(self._lead[0])
        ]

    def _guard(self, stream: _Stream, step: Callable[..., None], *arguments: Any) -> None:
        """Takes a step of a stream, and waits as long as it must."""
        try:
            step(*arguments)
            while not stream.delivered():
                self._wait()
        except (reverb.ReverbError, RuntimeError):
            # The server is gone, and with it what this stream had in flight.
            stream.drop()
            self._wait()


class _Stream:
    """One environment's writer. Its steps are rows and, behind an episode's end, a few more."""

    def __init__(
        self,
        spec: ReplaySpec,
        wire: Wire,
        client: reverb.Client,
        largest: _LargestPriority | None,
    ) -> None:
        self._wire, self._client, self._largest = wire, client, largest
        self._in_flight = 0 if wire.is_rollout else _IN_FLIGHT
        self._windows: TransitionWindows | SequenceWindows
        if isinstance(spec.item, Transitions):
            self._windows = TransitionWindows(spec.item, None)
        else:
            self._windows = SequenceWindows(spec.item, None)
        self._windows.insert_into(self)
        self._zeros: dict[str, Any] = {
            leaf.name: np.zeros(leaf.kept, leaf.dtype)
            for leaves in wire.leaves.values()
            for leaf in leaves
        }
        if not wire.is_transition:
            self._zeros |= {name: np.float32(0) for name in ("reward", "discount", "mask")}
            self._zeros["step_type"] = np.int32(_LAST)
        elif wire.depth > 1:
            self._zeros["age"] = np.int32(0)
        self._writer: reverb.TrajectoryWriter | None = None
        self._steps = 0  # Steps of the writer that were begun.
        self._row = 0  # Step of the row that was begun last.
        self._kind: int | None = None  # Its step type; None: the next must be a first.
        self._is_open = False  # Whether a step waits for its other columns.
        self._age = 0  # Rows since the first of the episode.
        self._seen: list[int] = []  # The newest steps that have an observation.
        self._padding = 0  # Steps of padding behind the last row.
        self._found: list[tuple[Any, ...]] = []  # Transitions that are to be made.
        self._has_news = False  # Whether items were made that may not be confirmed.

    def first(self, observation: list[np.ndarray], follows: bool) -> None:
        """Begins an episode; `follows`: behind one that ended, where there was one."""
        if self._kind == _LAST and follows:
            self._begin(observation, _FIRST)
            self._windows.advance(self._row, 0.0, 0.0, [_FIRST], False)
            return
        if self._writer is None:
            # Signatures are not asked for: the server may not be there yet.
            self._writer = self._client.trajectory_writer(
                num_keep_alive_refs=self._wire.reach, get_signature_timeout_ms=None
            )
        if self._is_open:
            self._answer(self._nothing(), 0.0, 0.0)
        if not self._steps:
            # Reverb takes runs of steps only: there must be some before the first frame.
            for _ in range(self._wire.depth - 1):
                self._pad()
        self._begin(observation, _FIRST)
        self._windows.restart(self._row)

    def add(
        self,
        answer: list[np.ndarray],
        reward: float,
        discount: float,
        observation: list[np.ndarray],
        kind: int,
    ) -> None:
        """Adds what followed the open row, and opens the next."""
        if self._kind is None:  # The rest of an episode that was lost.
            if kind == _FIRST:
                self.first(observation, False)
            return
        if self._is_open:
            self._answer(answer, reward, discount)
        if self._wire.is_transition:
            # What the row completes is found first: returns travel in a step with an observation.
            self._windows.advance(self._steps, reward, discount, [kind], False)
            found, self._found = self._found, []
            self._begin(observation, kind, found[0] if found else None)
            for i, item in enumerate(found):
                self._insert_transition(i, *item)
            return
        self._begin(observation, kind)
        if kind == _LAST:
            self._answer(self._nothing(), 0.0, 0.0)
        self._windows.advance(self._row, reward, discount, [kind], False)

    def insert_one(self, values: tuple[Any, ...]) -> None:
        """Makes an item; called by the windows."""
        if self._wire.is_transition:
            self._found.append(values)
        else:
            self._insert_sequence(values[0], values[2])

    def insert(self, values: tuple[Any, ...], count: int) -> None:
        """Makes an item of the one stream; called by the windows."""
        assert count == 1
        self._insert_sequence(values[0], values[2])

    def delivered(self) -> bool:
        """Whether few enough items wait to be confirmed. Waits a moment for them."""
        if not self._has_news:
            return True
        try:
            self.flush(self._in_flight, _PATIENCE_MS)
        except reverb.DeadlineExceededError:
            return False
        self._has_news = False
        return True

    def flush(self, pending: int, timeout_ms: int | None) -> None:
        """Waits until at most so many items are not confirmed."""
        if self._writer is not None:
            self._writer.flush(pending, timeout_ms)

    def pause(self) -> None:
        """Lets windows that are not complete go; the stream goes on with the next first row."""
        self._kind = None

    def drop(self) -> None:
        """Forgets all that was written as well, and the writer."""
        if self._writer is not None:
            with contextlib.suppress(reverb.ReverbError, RuntimeError):
                self._writer.close()
        self._forget()

    def _forget(self) -> None:
        self._writer = None
        self._row = self._steps = self._padding = 0
        self._seen, self._kind, self._age = [], None, 0
        self._found = []
        self._is_open = self._has_news = False

    def _nothing(self) -> list[np.ndarray]:
        leaves = self._wire.leaves["action"] + self._wire.leaves["extras"]
        return [self._zeros[leaf.name] for leaf in leaves]

    def _append(self, columns: dict[str, Any], *, closes: bool) -> None:
        assert self._writer is not None
        if not self._is_open:
            self._steps += 1
        self._writer.append(columns, partial_step=not closes)
        self._is_open = not closes

    def _begin(
        self, observation: list[np.ndarray], kind: int, item: tuple[Any, ...] | None = None
    ) -> None:
        """Begins a row, with the return of the transition that it completes."""
        leaves = self._wire.leaves["observation"]
        columns: dict[str, Any] = {
            leaf.name: part for leaf, part in zip(leaves, observation, strict=True)
        }
        self._age = 0 if kind == _FIRST else self._age + 1
        if not self._wire.is_transition:
            columns |= {"step_type": np.int32(kind), "mask": np.float32(1)}
        elif self._wire.depth > 1:
            columns["age"] = np.int32(self._age)
        if item is not None:
            columns |= {"reward": np.float32(item[1]), "discount": np.float32(item[2])}
        self._append(columns, closes=self._wire.is_transition and kind == _LAST)
        self._row, self._kind, self._padding = self._steps - 1, kind, 0
        self._see(self._row)

    def _answer(self, answer: list[np.ndarray], reward: float, discount: float) -> None:
        leaves = self._wire.leaves["action"] + self._wire.leaves["extras"]
        columns: dict[str, Any] = {
            leaf.name: part for leaf, part in zip(leaves, answer, strict=True)
        }
        if not self._wire.is_transition:
            columns |= {"reward": np.float32(reward), "discount": np.float32(discount)}
        self._append(columns, closes=True)

    def _pad(self) -> None:
        """Adds a step of zeros."""
        self._append(self._zeros, closes=True)
        self._see(self._steps - 1)

    def _see(self, step: int) -> None:
        """Remembers a step that has an observation."""
        self._seen.append(step)
        del self._seen[: -self._wire.reach]

    def _frames(self, row: int, before: int) -> list[int]:
        """The steps of so many frames before `row`."""
        at = self._seen.index(row)
        return self._seen[at - before : at]

    def _insert_transition(
        self, index: int, row: int, reward: float, discount: float, span: int = 1
    ) -> None:
        """Makes an item. At an episode's end several come together, each in a step of its own."""
        if index:
            outcome = {"reward": np.float32(reward), "discount": np.float32(discount)}
            self._append(outcome, closes=True)
        assert self._writer is not None
        history, columns = self._writer.history, {}
        for leaf in self._wire.leaves["observation"]:
            for prefix, at in (("", row), ("next_", row + span)):
                rows: Any = at if leaf.stack == 1 else [*self._frames(at, leaf.stack - 1), at]
                columns[prefix + leaf.name] = history[leaf.name][rows]
        for leaf in self._wire.leaves["action"] + self._wire.leaves["extras"]:
            columns[leaf.name] = history[leaf.name][row]
        for name in ("reward", "discount"):
            columns[name] = history[name][self._steps - 1]
        if self._wire.depth > 1:
            columns |= {"age": history["age"][row], "next_age": history["age"][row + span]}
        self._create(columns)

    def _insert_sequence(self, row: int, span: int) -> None:
        length = self._wire.length
        for _ in range(length - span - self._padding):
            self._pad()
            self._padding += 1
        assert self._writer is not None
        history, columns = self._writer.history, {}
        rows = list(range(row, row + length))
        for leaf in self._wire.leaves["observation"]:
            columns[leaf.name] = history[leaf.name][self._frames(row, leaf.stack - 1) + rows]
        outcomes = rows[:-1] if self._wire.is_rollout else rows
        for leaf in self._wire.leaves["action"] + self._wire.leaves["extras"]:
            columns[leaf.name] = history[leaf.name][outcomes]
        for name in ("reward", "discount"):
            columns[name] = history[name][outcomes]
        columns["mask"] = history["mask"][rows]
        before = self._frames(row, self._wire.depth - 1)
        columns["step_type"] = history["step_type"][before + rows]
        self._create(columns)

    def _create(self, columns: dict[str, Any]) -> None:
        assert self._writer is not None
        priority = 1.0 if self._largest is None else self._largest.get()
        self._writer.create_item(TABLE, priority, columns)
        self._has_news = True


class _LargestPriority:
    """The largest priority that the learner ever gave: what new items have."""

    def __init__(self, address: str) -> None:
        self._client = reverb.Client(address)
        self._value = 1.0
        self._ask_at = 0.0

    def get(self) -> float:
        """At most a few seconds old."""
        now = time.monotonic()
        if now >= self._ask_at:
            self._ask_at = now + 4 * _FRESH_SECONDS
            with contextlib.suppress(reverb.ReverbError, RuntimeError):
                if self._client.server_info(1)[LARGEST].current_size:
                    (item,) = self._client.sample(LARGEST, emit_timesteps=False)
                    self._value = np.asarray(item.data[0]).item()
        return self._value

    def put(self, value: float) -> None:
        """Tells all actors."""
        self._client.insert(np.float64(value), {LARGEST: 1.0})


class ReverbReplay:
    """What the learner holds of a replay in a Reverb server.

    A thread reads batches ahead of the learner and makes them ready; another writes priorities
    back. Where the server does not answer both try again until it does.
    """

    def __init__(
        self,
        spec: ReplaySpec,
        environment_spec: Any,
        extras_spec: Nest,
        address: str,
        *,
        steps_per_sample: int = 1,
    ) -> None:
        """Begins to read.

        Args:
            spec: As the server's tables were made from. Of `Rollouts`, a batch holds whichever
                `batch_size` windows come first, of any streams.
            environment_spec: Likewise.
            extras_spec: Likewise.
            address: Of the server, host:port.
            steps_per_sample: K, batches that the learner draws at once.
        """
        self.spec = spec
        self._arguments = spec, environment_spec, extras_spec, address
        self._leading = (steps_per_sample, spec.batch_size)
        self._wire = Wire(spec, environment_spec, extras_spec)
        self._client = reverb.Client(address)
        self._address = address
        self._changed = threading.Condition()
        self._batches: list[Sample] = []
        # Rollouts that are read early are older when they are learned from.
        self._ahead = 1 if self._wire.is_rollout else 2
        self._failure: BaseException | None = None
        self._is_closed = False
        self._updates: queue.Queue[tuple[np.ndarray, np.ndarray] | None] = queue.Queue(64)
        self._numbers: tuple[int, int, int] = 0, 0, 0
        self._numbers_until = 0.0
        self._threads = [threading.Thread(target=self._read, name="replay-reader", daemon=True)]
        if spec.priority_exponent is not None:
            self._largest = _LargestPriority(address)
            writer = threading.Thread(target=self._write, name="replay-priorities", daemon=True)
            self._threads.append(writer)
        for thread in self._threads:
            thread.start()

    def adder(
        self, num_envs: int | None = None, while_waiting: Callable[[], None] | None = None
    ) -> ReverbAdder:
        """What writes into this replay."""
        return ReverbAdder(*self._arguments, num_envs=num_envs, while_waiting=while_waiting)

    def can_insert(self) -> bool:
        """True: it is the server that holds actors up."""
        return True

    def can_sample(self, num_batches: int | None = None) -> bool:
        """Whether batches are ready, so that `sample` does not wait."""
        self._check(num_batches)
        return bool(self._batches)

    def wait(self, seconds: float) -> bool:
        """Waits for batches, at most so long. Returns whether they are ready."""
        with self._changed:
            self._changed.wait_for(lambda: self._batches or self._failure, seconds)
            self._raise()
            return bool(self._batches)

    def sample(self, num_batches: int | None = None) -> Sample:
        """The next batch, [B, ...], where K is 1, or K of them, [K, B, ...]. Waits for it.

        Raises:
            ValueError: If `num_batches` is another number than K.
            RuntimeError: If the replay is closed.
        """
        self._check(num_batches)
        with self._changed:
            self._changed.wait_for(lambda: self._batches or self._failure or self._is_closed)
            self._raise()
            if not self._batches:
                raise RuntimeError("the replay is closed.")
            batch = self._batches.pop(0)
            self._changed.notify_all()
        return _first(batch) if num_batches is None else batch

    def dataset(self, num_batches: int | None = None) -> Iterator[Sample]:
        """Batches without end, as `sample` gives them."""
        while True:
            yield self.sample(num_batches)

    def update_priorities(self, keys: np.ndarray, priorities: np.ndarray) -> None:
        """Gives items new priorities, in the background; where too much waits, the oldest goes.

        Raises:
            ValueError: If a priority is negative or not finite, or the replay is uniform.
        """
        if self.spec.priority_exponent is None:
            raise ValueError("the replay samples uniformly: it has no priorities to update.")
        keys = np.asarray(keys, np.uint64).reshape(-1)
        priorities = np.asarray(priorities, np.float64).reshape(-1)
        if not keys.size:
            return
        if not (priorities.min() >= 0.0 and priorities.max() < np.inf):
            raise ValueError(
                f"priorities lie between {priorities.min()} and {priorities.max()}; they must be "
                "finite numbers of at least 0."
            )
        while True:
            try:
                self._updates.put_nowait((keys, priorities))
                return
            except queue.Full:
                with contextlib.suppress(queue.Empty):
                    self._updates.get_nowait()

    def save(self) -> Nest:
        """Has the server write a checkpoint, and says into which folder."""
        return {"folder": np.array(self._client.checkpoint())}

    def restore(self, state: Nest) -> None:
        """Raises ValueError: it is the server that goes on from a checkpoint."""
        raise ValueError(
            f"a Reverb server goes on from {state['folder']} when it is started with that folder; "
            "it cannot be given to a client."
        )

    def flush(self) -> None:
        """Nothing waits to be written here."""

    def close(self) -> None:
        """Ends the threads."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
        if len(self._threads) > 1:
            with contextlib.suppress(queue.Full):
                self._updates.put_nowait(None)
        for thread in self._threads:
            thread.join(4 * _PATIENCE_MS / 1000)

    def __len__(self) -> int:
        return self._look()[0]

    @property
    def size(self) -> int:
        """Items held, as of a moment ago."""
        return self._look()[0]

    @property
    def inserted(self) -> int:
        """Items ever inserted, as of a moment ago."""
        return self._look()[1]

    @property
    def sampled(self) -> int:
        """Items ever drawn, as of a moment ago; those that wait for the learner among them."""
        return self._look()[2]

    @property
    def observed_samples_per_insert(self) -> float:
        """Items drawn per item inserted since the replay held its `min_size`; 0 before."""
        _, inserted, sampled = self._look()
        since = inserted - (0 if self._wire.is_rollout else self.spec.min_size)
        return sampled / since if since > 0 else 0.0

    def _look(self) -> tuple[int, int, int]:
        """Items held, inserted and drawn; the last known where the server does not answer."""
        now = time.monotonic()
        if now >= self._numbers_until:
            # Asking a server that does not answer takes seconds: not again soon.
            self._numbers_until = now + 10 * _FRESH_SECONDS
            with contextlib.suppress(reverb.ReverbError, RuntimeError):
                info = self._client.server_info(1)[TABLE]
                pace = info.rate_limiter_info
                self._numbers = (
                    info.current_size,
                    pace.insert_stats.completed,
                    pace.sample_stats.completed,
                )
                self._numbers_until = now + _FRESH_SECONDS
        return self._numbers

    def _check(self, num_batches: int | None) -> None:
        k = self._leading[0]
        if (num_batches or 1) != k:
            raise ValueError(f"{num_batches or 1} batches were asked for; the replay draws {k}.")

    def _raise(self) -> None:
        if self._failure is not None:
            raise RuntimeError(f"the replay cannot be read: {self._failure}") from self._failure

    def _dataset(self) -> tf.data.Dataset:
        """Items of the table in batches. It ends when the pace holds it up for a while."""
        columns, count = self._wire.columns, self._leading[0] * self._leading[1]
        return reverb.TrajectoryDataset(
            self._address,
            TABLE,
            dtypes={name: tf.as_dtype(dtype) for name, (_, dtype) in columns.items()},
            shapes={name: tf.TensorShape(shape) for name, (shape, _) in columns.items()},
            max_in_flight_samples_per_worker=1 if self._wire.is_rollout else min(count, 64),
            num_workers_per_iterator=1,
            rate_limiter_timeout_ms=_PATIENCE_MS,
        ).batch(count)

    def _read(self) -> None:
        rest: tuple[list[np.ndarray], dict[str, np.ndarray]] | None = None
        try:
            while not self._is_closed:
                try:
                    batches = iter(self._dataset())
                    while self._has_room():
                        rest = self._take(next(batches), rest)
                except StopIteration:
                    pass
                except (tf.errors.UnavailableError, tf.errors.CancelledError):
                    time.sleep(_PATIENCE_MS / 1000)
        except BaseException as failure:
            with self._changed:
                self._failure = failure
                self._changed.notify_all()

    def _has_room(self) -> bool:
        """Waits until the learner wants more. Returns whether it does."""
        with self._changed:
            self._changed.wait_for(lambda: len(self._batches) < self._ahead or self._is_closed)
            return not self._is_closed

    def _take(self, item: Any, rest: Any) -> Any:
        """Hands a batch on, or returns what it takes to make one of the next."""
        info = [item.info.key.numpy(), item.info.probability.numpy(), item.info.table_size.numpy()]
        data = {name: tensor.numpy() for name, tensor in item.data.items()}
        if rest is not None:
            info = [np.concatenate(pair) for pair in zip(rest[0], info, strict=True)]
            data = {name: np.concatenate((rest[1][name], data[name])) for name in data}
        count = self._leading[0] * self._leading[1]
        left = None
        if len(info[0]) < count:
            return info, data
        if len(info[0]) > count:
            left = [part[count:] for part in info], {n: part[count:] for n, part in data.items()}
            info, data = [part[:count] for part in info], {n: p[:count] for n, p in data.items()}
        key, probability, size = (part.reshape(self._leading) for part in info)
        known = SampleInfo(key, probability.astype(np.float32), size.astype(np.float32))
        sample = Sample(known, self._wire.unpack(data, self._leading))
        with self._changed:
            self._batches.append(sample)
            self._changed.notify_all()
        return left

    def _write(self) -> None:
        largest = 1.0
        while (update := self._updates.get()) is not None:
            keys, priorities = update
            with contextlib.suppress(reverb.ReverbError, RuntimeError):
                # Of a key named twice the last counts, as everywhere.
                updates = dict(zip(keys.tolist(), priorities.tolist(), strict=True))
                self._client.mutate_priorities(TABLE, updates)
                if (most := float(priorities.max())) > largest:
                    self._largest.put(most)
                    largest = most


def _first(sample: Sample) -> Sample:
    """A batch of K = 1 without its first dimension."""
    return tf.nest.map_structure(lambda leaf: leaf[0], sample)
