"""A replay that lives in another process, as roles hold it, whatever serves it."""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np

from ..interfaces import Adder
from .items import ReplaySpec, Rollouts, Sample
from .nests import Nest
from .shapes import held_bytes, sample_shapes

_FRESH_SECONDS = 0.5  # How old the server's numbers may be.
_CLOSE_SECONDS = 1.6  # How long threads may take to end.


class RemoteProxy:
    """Base of the proxies of a replay in another process; it can neither write nor draw."""

    key_dtype: Any = np.int64
    """Of the items' names."""
    failed: tuple[type[Exception], ...] = (OSError,)
    """Raised by a call of the server when it cannot be reached."""

    def __init__(self, spec: ReplaySpec, environment_spec: Any, extras_spec: Nest) -> None:
        """Connects to nothing yet.

        Args:
          spec: As the server's replay was made from, with this one's part of the batch.
          environment_spec: Likewise.
          extras_spec: Likewise.
        """
        self.spec = spec
        self._specs = spec, environment_spec, extras_spec
        self._numbers: tuple[int, int, int] = 0, 0, 0
        self._numbers_until = 0.0

    def _ask(self) -> tuple[int, int, int]:
        """Items held, inserted and drawn, as the server says; raises one of `failed`."""
        raise NotImplementedError

    def adder(self) -> Adder:
        """Raises RuntimeError: nothing is written here."""
        raise RuntimeError("only actors write to a replay in a server.")

    def can_insert(self) -> bool:
        """True: it is the server that holds actors up."""
        return True

    def can_sample(self, num_batches: int = 1) -> bool:
        """False: nothing is drawn here."""
        return False

    def wait(self, seconds: float) -> bool:
        """Waits for batches, at most so long. Returns True if they are ready."""
        time.sleep(seconds)
        return False

    def sample(self, num_batches: int | None = None) -> Sample:
        """Raises RuntimeError: nothing is drawn here."""
        raise RuntimeError("only the learner draws from a replay in a server.")

    def sample_shapes(self, num_batches: int | None = None) -> Sample:
        """Returns the shapes and dtypes of the learner's `sample`, as `jax.ShapeDtypeStruct`."""
        return sample_shapes(*self._specs, num_batches, key_dtype=self.key_dtype)

    def place_batches(self, place: Callable[[Sample], Sample]) -> None:
        """Nothing is read ahead here."""

    @property
    def num_bytes(self) -> int:
        """Approximate number of bytes of the items held a moment ago."""
        return held_bytes(*self._specs, len(self))

    def dataset(self, num_batches: int | None = None) -> Iterator[Sample]:
        """Batches without end, as `sample` gives them."""
        while True:
            yield self.sample(num_batches)

    def update_priorities(self, keys: np.ndarray, priorities: np.ndarray) -> None:
        """Raises RuntimeError: who draws nothing knows of no priorities."""
        raise RuntimeError("only the learner gives items of a replay in a server priorities.")

    def save(self) -> Nest:
        """Raises RuntimeError: the items are with the server."""
        raise RuntimeError("it is the server that writes checkpoints of a replay.")

    def restore(self, state: Nest) -> None:
        """Raises ValueError: it is the server that goes on from a checkpoint."""
        raise ValueError(
            "a server goes on from a checkpoint when it is started with that folder; it cannot be "
            "given to a client."
        )

    def flush(self) -> None:
        """Nothing waits to be written here."""

    def close(self) -> None:
        """Nothing is to be closed here."""

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
        since = inserted - (0 if isinstance(self.spec.item, Rollouts) else self.spec.min_size)
        return sampled / since if since > 0 else 0.0

    def _look(self) -> tuple[int, int, int]:
        """Items held, inserted and drawn; the last known where the server does not answer."""
        now = time.monotonic()
        if now >= self._numbers_until:
            # Asking a server that does not answer takes seconds: not again soon.
            self._numbers_until = now + 10 * _FRESH_SECONDS
            with contextlib.suppress(*self.failed):
                self._numbers = self._ask()
                self._numbers_until = now + _FRESH_SECONDS
        return self._numbers


class ReadingProxy(RemoteProxy):
    """Proxy with which the learner draws from a replay in another process.

    A thread reads batches ahead of the learner and makes them ready; another writes priorities
    back.
    """

    def __init__(
        self, spec: ReplaySpec, environment_spec: Any, extras_spec: Nest, steps_per_sample: int
    ) -> None:
        """Reads nothing before `_begin`.

        Args:
          spec, environment_spec, extras_spec: As of `RemoteProxy`. Of `Rollouts`, a batch holds
            whichever `batch_size` windows come first, of any streams.
          steps_per_sample: K, batches that the learner draws at once.
        """
        super().__init__(spec, environment_spec, extras_spec)
        self._place: Callable[[Sample], Sample] = lambda sample: sample
        self._leading = (steps_per_sample, spec.batch_size)
        self._changed = threading.Condition()
        self._batches: list[Sample] = []
        # Rollouts that are read early are older when they are learned from.
        self._ahead = 1 if isinstance(spec.item, Rollouts) else 2
        self._failure: BaseException | None = None
        self._is_closed = False
        self._updates: queue.Queue[tuple[np.ndarray, np.ndarray] | None] = queue.Queue(64)
        self._threads = [self._thread("replay-reader", self._read)]
        if spec.priority_exponent is not None:
            self._threads.append(self._thread("replay-priorities", self._write))

    def _read(self) -> None:
        """Hands batches on (`_hand_on`) while there is room (`_has_room`)."""
        raise NotImplementedError

    def _write(self) -> None:
        """Writes priorities from `_updates` back, until it gets None."""
        raise NotImplementedError

    def _begin(self) -> None:
        for thread in self._threads:
            thread.start()

    def _thread(self, name: str, function: Callable[[], None]) -> threading.Thread:
        def run() -> None:
            try:
                function()
            except BaseException as failure:
                with self._changed:
                    self._failure = failure
                    self._changed.notify_all()

        return threading.Thread(target=run, name=name, daemon=True)

    def can_sample(self, num_batches: int = 1) -> bool:
        """True if batches are ready, so that `sample` does not wait."""
        self._check(num_batches)
        self._raise()
        return bool(self._batches)

    def wait(self, seconds: float) -> bool:
        """Waits for batches, at most so long. Returns True if they are ready."""
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
        return jax.tree.map(lambda leaf: leaf[0], batch) if num_batches is None else batch

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
        keys = np.asarray(keys, self.key_dtype).reshape(-1)
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
            thread.join(_CLOSE_SECONDS)

    def _check(self, num_batches: int | None) -> None:
        k = self._leading[0]
        if (num_batches or 1) != k:
            raise ValueError(f"{num_batches or 1} batches were asked for; the replay draws {k}.")

    def _raise(self) -> None:
        if self._failure is not None:
            raise RuntimeError(f"the replay cannot be used: {self._failure}") from self._failure

    def _has_room(self) -> bool:
        """Waits until the learner wants more. Returns whether it does."""
        with self._changed:
            self._changed.wait_for(lambda: len(self._batches) < self._ahead or self._is_closed)
            return not self._is_closed

    def _hand_on(self, sample: Sample) -> None:
        """Gives the learner K batches, [K, B, ...]."""
        sample = self._place(sample)
        with self._changed:
            self._batches.append(sample)
            self._changed.notify_all()
