"""The learner's proxy of a replay in a Reverb server."""

from __future__ import annotations

import contextlib
import time
from typing import Any

import numpy as np
import reverb
import tensorflow as tf

from ..items import ReplaySpec, Sample, SampleInfo
from ..nests import Nest
from ..remote import ReadingProxy
from .largest import LargestPriority
from .proxies import ask
from .tables import TABLE
from .wire import Wire

_PATIENCE_MS = 400  # How long the reader waits for the pace before it looks around.


class ReverbReplay(ReadingProxy):
    """Draws from a replay in a Reverb server, for the learner.

    If the server does not answer, its threads try again until it does.
    """

    key_dtype = np.uint64
    failed = (reverb.ReverbError, RuntimeError)

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
        del num_envs
        super().__init__(spec, environment_spec, extras_spec, steps_per_sample)
        self._client = reverb.Client(address)
        self._wire = Wire(spec, environment_spec, extras_spec)
        self._address = address
        if spec.priority_exponent is not None:
            self._largest = LargestPriority(address)
        self._begin()

    def _ask(self) -> tuple[int, int, int]:
        return ask(self._client)

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
        while not self._is_closed:
            try:
                batches = iter(self._dataset())
                while self._has_room():
                    rest = self._take(next(batches), rest)
            except StopIteration:
                pass
            except (tf.errors.UnavailableError, tf.errors.CancelledError):
                time.sleep(_PATIENCE_MS / 1000)

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
        self._hand_on(Sample(known, self._wire.unpack(data, self._leading)))
        return left

    def _write(self) -> None:
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
