"""Words of several runs at once, in one place."""

from __future__ import annotations

import collections
import dataclasses
import statistics
import threading
from collections.abc import Sequence

from .report import Evaluated, Reporter, Starting, Status


class CombinedReporter:
    """Passes on the lines of runs with their names before them, and one status of all of them.

    Evaluations of runs that differ in their seed alone become one line, once each has one.
    """

    def __init__(self, reporter: Reporter, names: Sequence[str]):
        """Takes who is told, and what the runs are called: SETTINGS/SEED, or SEED."""
        self._reporter, self._names = reporter, names
        self._newest: dict[int, Status] = {}
        self._ended: set[int] = set()
        self._waiting: dict[str, dict[int, collections.deque[Evaluated]]] = {}
        for index, name in enumerate(names):
            group = self._waiting.setdefault(_settings(name), {})
            group[index] = collections.deque()
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

    def evaluated(self, index: int, evaluation: Evaluated) -> None:
        """Takes an evaluation of a run; passed on with those of the others."""
        with self._lock:
            group = _settings(self._names[index])
            self._waiting[group][index].append(evaluation)
            self._tell_evaluations(group)

    def _tell_evaluations(self, group: str) -> None:
        """Tells the evaluations for which nobody has to be waited any more."""
        waiting = self._waiting[group]
        while any(waiting.values()) and all(
            queue or index in self._ended for index, queue in waiting.items()
        ):
            found = {index: queue.popleft() for index, queue in waiting.items() if queue}
            (first, one), *others = found.items()
            if others:
                of = f"{group}: " if group else ""
                self._reporter.line(of + _of_runs(list(found.values())))
            else:
                self._reporter.line(f"{self._names[first]}: {one.text()}")

    def end(self, index: int) -> None:
        """Leaves out a run."""
        with self._lock:
            self._newest.pop(index, None)
            self._ended.add(index)
            self._tell_evaluations(_settings(self._names[index]))


class _OfRun(Reporter):
    """The reporter of one run."""

    def __init__(self, whole: CombinedReporter, index: int):
        self._whole, self._index = whole, index

    def status(self, status: Status | Starting) -> None:
        self._whole.status(self._index, status)

    def line(self, text: str) -> None:
        self._whole.line(self._index, text)

    def evaluated(self, evaluation: Evaluated) -> None:
        self._whole.evaluated(self._index, evaluation)

    def close(self) -> None:
        self._whole.end(self._index)


def _settings(name: str) -> str:
    """Returns what a run's name says besides its seed."""
    return name.rpartition("/")[0]


def _of_runs(found: Sequence[Evaluated]) -> str:
    """Returns evaluations of several runs in words."""
    steps, means = [one.steps for one in found], [one.mean for one in found]
    at = f"{min(steps):,}" if min(steps) == max(steps) else f"{min(steps):,} to {max(steps):,}"
    return (
        f"evaluation at {at} {found[0].clock}: return {statistics.mean(means):.1f} "
        f"({min(means):.1f} to {max(means):.1f}) over {len(found)} runs"
    )


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
