"""What the learner holds of a replay in a Reverb server."""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import reverb
import tensorflow as tf

from ..items import ReplaySpec, Sample, SampleInfo
from ..nests import Nest
from .faces import ReverbFace
from .largest import LargestPriority
from .tables import TABLE
from .wire import Wire

_PATIENCE_MS = 400  # How long the reader waits for the pace before it looks around.


class ReverbReplay(ReverbFace):
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
        num_envs: int | None = None,
        steps_per_sample: int = 1,
    ) -> None:
        """Begins to read.

        Args:
          spec: As the server's tables were made from. Of `Rollouts`, a batch holds whichever
            `batch_size` windows come first, of any streams.
          environment_spec: Likewise.
          extras_spec: Likewise.
          address: Of the server, host:port.
          num_envs: Of who writes here, if anybody does.
          steps_per_sample: K, batches that the learner draws at once.
        """
        super().__init__(spec, environment_spec, extras_spec, address, num_envs=num_envs)
        self._place: Callable[[Sample], Sample] = lambda sample: sample
        self._leading = (steps_per_sample, spec.batch_size)
        self._wire = Wire(spec, environment_spec, extras_spec)
        self._address = address
        self._changed = threading.Condition()
        self._batches: list[Sample] = []
        # Rollouts that are read early are older when they are learned from.
        self._ahead = 1 if self._wire.is_rollout else 2
        self._failure: BaseException | None = None
        self._is_closed = False
        self._updates: queue.Queue[tuple[np.ndarray, np.ndarray] | None] = queue.Queue(64)
        self._threads = [threading.Thread(target=self._read, name="replay-reader", daemon=True)]
        if spec.priority_exponent is not None:
            self._largest = LargestPriority(address)
            writer = threading.Thread(target=self._write, name="replay-priorities", daemon=True)
            self._threads.append(writer)
        for thread in self._threads:
            thread.start()

    def can_sample(self, num_batches: int = 1) -> bool:
        """Whether batches are ready, so that `sample` does not wait."""
        self._check(num_batches)
        self._raise()
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

    def place_batches(self, place: Callable[[Sample], Sample]) -> None:
        """Has the thread that reads make batches ready by `place`; those read before stay."""
        self._place = place

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

    def close(self) -> None:
        """Ends the threads."""
        super().close()
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
        if len(self._threads) > 1:
            with contextlib.suppress(queue.Full):
                self._updates.put_nowait(None)
        for thread in self._threads:
            thread.join(4 * _PATIENCE_MS / 1000)

    def _check(self, num_batches: int | None) -> None:
        k = self._leading[0]
        if (num_batches or 1) != k:
            raise ValueError(f"{num_batches or 1} batches were asked for; the replay draws {k}.")

    def _raise(self) -> None:
        if self._failure is not None:
            raise RuntimeError(f"the replay cannot be used: {self._failure}") from self._failure

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
        sample = self._place(Sample(known, self._wire.unpack(data, self._leading)))
        with self._changed:
            self._batches.append(sample)
            self._changed.notify_all()
        return left

    def _write(self) -> None:
        try:
            self._write_priorities()
        except BaseException as failure:
            with self._changed:
                self._failure = failure
                self._changed.notify_all()

    def _write_priorities(self) -> None:
        largest = 1.0
        while (update := self._updates.get()) is not None:
            keys, priorities = update
            with contextlib.suppress(reverb.ReverbError, RuntimeError):
                # Of a key named twice the last counts, as everywhere.
                updates = dict(zip(keys.tolist(), priorities.tolist(), strict=True))
                self._client.mutate_priorities(TABLE, updates)
                largest = max(largest, float(priorities.max()))
                # Another may have given a larger one, and a new server knows of none.
                if largest > self._largest.get():
                    self._largest.put(largest)


def _first(sample: Sample) -> Sample:
    """A batch of K = 1 without its first dimension."""
    return tf.nest.map_structure(lambda leaf: leaf[0], sample)
