"""One job at a time beside the run, in a thread of its own."""

from __future__ import annotations

import concurrent.futures
import threading
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class Background(Generic[T]):
    """Does one job at a time; its outcome, an error too, is told to who looks next."""

    def __init__(self, name: str):
        self._name = name
        self._job: concurrent.futures.Future[T] | None = None
        self._thread: threading.Thread | None = None

    @property
    def busy(self) -> bool:
        """True while a job is being done."""
        return self._job is not None and not self._job.done()

    def start(self, job: Callable[[], T]) -> None:
        """Begins a job. The outcome of the one before must have been taken."""
        assert self._job is None, "one job at a time"
        future = self._job = concurrent.futures.Future()

        def do() -> None:
            try:
                future.set_result(job())
            except BaseException as error:
                future.set_exception(error)

        # No executor: at its end a process waits for those, also for one that hangs.
        self._thread = threading.Thread(target=do, name=self._name, daemon=True)
        self._thread.start()

    def take(self, seconds: float | None = 0.0) -> T | None:
        """The outcome of a job that ends within so many seconds, once; None: there is none.

        Args:
          seconds: to wait; None: until it ends.

        Raises:
          Exception: whatever the job raised.
        """
        job = self._job
        if job is None or not concurrent.futures.wait([job], seconds).done:
            return None
        self._job = None
        return job.result()

    def wait(self, seconds: float | None = None) -> None:
        """Waits until nothing is being done, at most so long; the outcome is still to be taken."""
        if self._thread is not None:
            # The thread itself: as it ends it frees the arrays of its job, and a process that exits
            # meanwhile is aborted within the device's library.
            self._thread.join(seconds)
