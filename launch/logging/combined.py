"""Words of several runs at once, in one place."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Sequence

from .report import Reporter, Starting, Status


class CombinedReporter:
    """Passes on the lines of runs with their names before them, and one status of all of them."""

    def __init__(self, reporter: Reporter, names: Sequence[str]):
        """Takes who is told, and what the runs are called."""
        self._reporter, self._names = reporter, names
        self._newest: dict[int, Status] = {}
        self._lock = threading.Lock()

    def of_run(self, index: int) -> Reporter:
        """Returns the reporter of a run, which may be told from a thread of its own."""
        return _OfRun(self, index)

    def line(self, index: int, text: str) -> None:
        """Passes on a line of a run."""
        with self._lock:
            self._reporter.line(f"{self._names[index]}: {text}")

    def status(self, index: int, status: Status | Starting) -> None:
        """Takes the status of a run; that of all is passed on with the first of them."""
        with self._lock:
            if isinstance(status, Status):
                self._newest[index] = status
                if index == min(self._newest):
                    self._reporter.status(_of_all(list(self._newest.values())))

    def end(self, index: int) -> None:
        """Leaves out a run."""
        with self._lock:
            self._newest.pop(index, None)


class _OfRun(Reporter):
    """The reporter of one run."""

    def __init__(self, whole: CombinedReporter, index: int):
        self._whole, self._index = whole, index

    def status(self, status: Status | Starting) -> None:
        self._whole.status(self._index, status)

    def line(self, text: str) -> None:
        self._whole.line(self._index, text)

    def close(self) -> None:
        self._whole.end(self._index)


def _of_all(found: Sequence[Status]) -> Status:
    """Returns steps and rates summed over runs, and their mean return."""
    returns = [one.episode_return for one in found if one.episode_return is not None]
    left = [one.seconds_left for one in found if one.seconds_left is not None]
    steps = [one.actor_steps for one in found if one.actor_steps is not None]
    return dataclasses.replace(
        found[0],
        actor_steps=sum(steps) if steps else None,
        budget=sum(one.budget for one in found),
        learner_steps=sum(one.learner_steps for one in found),
        episode_return=sum(returns) / len(returns) if returns else None,
        actor_rate=sum(one.actor_rate for one in found),
        learner_rate=sum(one.learner_rate for one in found),
        seconds_left=max(left, default=None),
    )
