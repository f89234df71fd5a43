"""The ledger of a run of several processes: who did how much, what is due, how far the run is.

It is kept by the counter role and holds no arrays, no clocks of others and no connections: all it
knows can be written to a file of text and read back.
"""

from __future__ import annotations

import collections
import dataclasses
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any

TRAIN, DRAIN, JUDGE, SAVE, DONE = "train", "drain", "judge", "save", "done"
REPLACED = "replaced"
"""Phases. TRAIN: actors act within the budget. DRAIN: it is spent; the learner does what the pace
still allows and saves. JUDGE: the final evaluation. SAVE: a stop was requested; the learner saves.
DONE: all roles may end. REPLACED is said to a source that another process has become."""

_LEASE_SECONDS = 20.0
_RECENT = 100


@dataclasses.dataclass
class _Count:
    """Steps that are reported now and then."""

    steps: int = 0
    seen: float = 0.0
    rate: float = 0.0
    """Steps a second between the last two reports that differed."""

    def take(self, steps: int) -> None:
        """Takes a report that comes now."""
        now = time.monotonic()
        if self.seen < now and self.steps < steps:
            self.rate = (steps - self.steps) / (now - self.seen)
        self.steps, self.seen = max(self.steps, steps), now

    def estimate(self, most: int) -> int:
        """Steps that are done by now, where it went on at its rate, and at most so many."""
        since = time.monotonic() - self.seen
        return max(self.steps, min(most, self.steps + int(self.rate * since)))


@dataclasses.dataclass
class _Incarnation(_Count):
    """One incarnation of one source of counts."""

    number: int = 0
    process: str = ""
    episodes: int = 0
    granted: int = 0
    start: int = 0
    """Of its process, among those of the source."""


class Ledger:
    """Counts, the budget, evaluations and phases. Its methods may be called from several threads.

    A source (a role that counts) enters once in each of its incarnations and reports totals of
    that incarnation, so that a report may be repeated or lost. What it may do of the budget is
    granted to it in advance, so that the budget is never exceeded, however many actors there are.
    """

    def __init__(
        self,
        *,
        budget: int,
        evaluation_period: int,
        episodes: int,
        final_episodes: int,
        quantum: int = 1,
        state: Mapping[str, Any] | None = None,
        clock: str = "actor_steps",
    ):
        """Opens a ledger.

        Args:
          budget: of the run, in steps of its clock.
          evaluation_period: steps of the clock between evaluations.
          episodes: of an evaluation on the way.
          final_episodes: of the one at the end.
          quantum: steps that an actor takes at once. The budget is granted in multiples of it, and
            spent where less than that is left.
          state: the counters of a checkpoint, whatever launch wrote it; None: of a new run.
          clock: actor_steps; or learner_steps, where nobody acts.
        """
        self._clock = clock
        self._lock = threading.RLock()
        self._budget, self._period, self._quantum = budget, evaluation_period, quantum
        self._episodes_wanted = (episodes, final_episodes)
        state = state or {}
        self._done = {name: state.get(name, 0) for name in ("actor_steps", "episodes")}
        self._incarnations: dict[str, _Incarnation] = {}
        self._next_incarnation: int = state.get("incarnations", 0)
        self._earlier: int = state.get("evaluations", 0)  # Whose results are not here.
        self._results: list[dict[str, Any]] = []
        self._given = self._earlier
        self._orders: dict[str, dict[str, Any]] = {}
        self._recent: collections.deque[Sequence[float]] = collections.deque(
            state.get("recent", ()), maxlen=_RECENT
        )
        self._learner: dict[str, Any] = {"steps": state.get("learner_steps", 0)}
        self._learned = _Count(self._learner["steps"], time.monotonic())
        self._evaluate_at: int = state.get(
            "evaluate_at", (self._steps // evaluation_period + 1) * evaluation_period
        )
        self._stop_requested = False
        self._finished = False
        self._seconds = {name: state.get(name, 0.0) for name in ("wall_seconds", "train_seconds")}
        self._resumed: int = state.get("resumed", 0)
        self._notes: list[str] = []

    # Counting.

    def enter(self, source: str, process: str = "", start: int = 0) -> int:
        """Begins an incarnation of a source; returns its number, which no other incarnation of the
        run has.

        Or a number below all others, to which every report is answered with REPLACED: where a
        process that was started later has entered already, as one that was cut off may ask.

        Args:
          source: its name.
          process: names the process that is the source. It asks again where an answer comes too
            late, and both calls are heard, in any order: one process has one incarnation. Without
            a name every call begins one.
          start: how many processes of the source had been started before that one.
        """
        with self._lock:
            entry = self._incarnations.get(source)
            if process and entry is not None and entry.process == process:
                return entry.number
            if entry is not None and start < entry.start:
                return -1
            self._close(source)
            number = self._next_incarnation
            self._next_incarnation += 1
            self._incarnations[source] = _Incarnation(
                number=number, process=process, seen=time.monotonic(), start=start
            )
            return number

    def report(
        self,
        source: str,
        incarnation: int,
        steps: int,
        episodes: int,
        recent: Sequence[Sequence[float]],
        want: int,
    ) -> tuple[str, int]:
        """Takes an actor's counts and grants it more.

        Args:
          source: its name.
          incarnation: the number that `enter` gave.
          steps: actor steps of this incarnation.
          episodes: episodes ended in this incarnation.
          recent: (return, length) of those that ended since the last report.
          want: steps that it would like to be granted beyond `steps`.

        Returns:
          The phase, and up to which value of `steps` it may go.
        """
        with self._lock:
            entry = self._incarnations.get(source)
            if entry is None or entry.number < incarnation:
                # It entered after this ledger was last written down.
                self._close(source)
                entry = self._incarnations[source] = _Incarnation(number=incarnation)
                self._next_incarnation = max(self._next_incarnation, incarnation + 1)
            elif entry.number > incarnation:
                return REPLACED, 0
            if steps < entry.steps:
                return self._phase(), entry.granted  # Heard late: what came after it counts.
            # Of a report that is repeated none are new.
            ended = max(0, episodes - entry.episodes)
            self._recent.extend(recent[max(0, len(recent) - ended) :])
            entry.take(steps)
            entry.episodes = max(entry.episodes, episodes)
            entry.granted = entry.steps
            phase = self._phase()
            if phase == TRAIN:
                granted = min(max(want, self._quantum), self._ungranted())
                entry.granted += granted // self._quantum * self._quantum
            return phase, entry.granted

    def _close(self, source: str) -> None:
        """Books an incarnation that has ended; frees what it was granted and did not use."""
        entry = self._incarnations.pop(source, None)
        if entry is not None:
            self._done["actor_steps"] += entry.steps
            self._done["episodes"] += entry.episodes

    def _ungranted(self) -> int:
        expired = time.monotonic() - _LEASE_SECONDS
        open_grants = sum(
            entry.granted - entry.steps
            for entry in self._incarnations.values()
            if entry.seen > expired
        )
        return max(0, self._budget - self.actor_steps - open_grants)

    @property
    def actor_steps(self) -> int:
        return self._done["actor_steps"] + sum(entry.steps for entry in self._incarnations.values())

    @property
    def _steps(self) -> int:
        """Of the clock."""
        return self._counts()[self._clock]

    @property
    def episodes(self) -> int:
        return self._done["episodes"] + sum(entry.episodes for entry in self._incarnations.values())

    # The learner.

    def learner(self, status: Mapping[str, Any]) -> tuple[str, int]:
        """Takes the learner's status.

        Args:
          status: `steps`; `version` of its newest variables; `drained`, when it has done all and
            saved; `saved`, when it has saved since a stop was requested; `metrics` and `replay`,
            numbers.

        Returns:
          The phase, and the steps of the run's clock.
        """
        with self._lock:
            self._learner = dict(status)
            self._learned.take(status["steps"])
            return self._phase(), self._steps

    # Evaluation.

    def next_evaluation(self, source: str) -> dict[str, Any] | None:
        """Returns what an evaluator is to do now; the same again where it died doing it.

        Steps that were taken since they were last reported count, as far as can be estimated: it
        judges the newest variables, and an evaluation at fewer steps than it had would flatter.

        Returns:
          None, or `index`, `episodes`, `actor_steps`, `learner_steps`, `version` (the least that
          will do) and `final`.
        """
        with self._lock:
            if source in self._orders:
                return self._orders[source]
            phase, steps = self._phase(), self._steps
            final = phase == JUDGE
            if final and any(order["final"] for order in self._orders.values()):
                return None
            if not final and not (phase == TRAIN and steps >= self._evaluate_at):
                return None
            self._evaluate_at = (steps // self._period + 1) * self._period
            counts = self._counts() if final else self._counts() | self._estimate()
            order = {
                "index": self._given,
                "episodes": self._episodes_wanted[final],
                "actor_steps": counts["actor_steps"],
                "learner_steps": counts["learner_steps"],
                "version": self._learner.get("version", -1) if final else -1,
                "final": final,
            }
            self._given += 1
            self._orders[source] = order
            return order

    def finish_evaluation(self, source: str, summary: Mapping[str, Any]) -> None:
        """Takes the outcome of the order that `source` had; repeated, it changes nothing."""
        with self._lock:
            order = self._orders.pop(source, None)
            if order is None or order["index"] != summary["index"]:
                return
            # Of the policy that was judged, and not of the end of its games.
            judged = {name: order[name] for name in ("actor_steps", "learner_steps")}
            self._results.append({**summary, "counts": self._counts() | judged})
            self._finished = self._finished or order["final"]

    # The run.

    def request_stop(self) -> None:
        """Ends the run as soon as the learner has saved."""
        with self._lock:
            self._stop_requested = True

    def _phase(self) -> str:
        if self._finished:
            return DONE
        if self._stop_requested:
            return DONE if self._learner.get("saved") else SAVE
        if self._steps + self._quantum <= self._budget:
            return TRAIN
        return JUDGE if self._learner.get("drained") else DRAIN

    def _estimate(self) -> dict[str, int]:
        """Of the run's clock by now, between two reports."""
        if self._clock == "learner_steps":
            return {self._clock: self._learned.estimate(self._budget)}
        acting = self._incarnations.values()
        return {
            self._clock: self._done["actor_steps"]
            + sum(entry.estimate(entry.granted) for entry in acting)
        }

    def _counts(self) -> dict[str, int]:
        return {
            "actor_steps": self.actor_steps,
            "episodes": self.episodes,
            "learner_steps": self._learner.get("steps", 0),
        }

    def look(self, results_seen: int = 0) -> dict[str, Any]:
        """Tells how far the run is, with the evaluations that followed the first `results_seen`."""
        with self._lock:
            return {
                **self._counts(),
                "phase": self._phase(),
                "recent": list(self._recent),
                "learner": dict(self._learner),
                "evaluations": self._results[max(0, results_seen - self._earlier) :],
            }

    def note(self, line: str) -> None:
        """Keeps a line for whoever tells the user."""
        with self._lock:
            self._notes.append(line)

    def take_notes(self) -> list[str]:
        with self._lock:
            notes, self._notes = self._notes, []
            return notes

    def spend(self, wall: float, train: float) -> None:
        """Takes the seconds that the run has lasted, in all and in training."""
        with self._lock:
            self._seconds = {"wall_seconds": wall, "train_seconds": train}

    def save(self) -> dict[str, Any]:
        """The counters of a checkpoint, as values that JSON can hold.

        All that a new ledger needs to go on, and all that a run in one process does.
        """
        with self._lock:
            return {
                **self._counts(),
                **self._seconds,
                "evaluations": self._earlier + len(self._results),
                "resumed": self._resumed,
                "incarnations": self._next_incarnation,
                "evaluate_at": self._evaluate_at,
                "recent": [list(one) for one in self._recent],
            }

    def journal(self) -> dict[str, Any]:
        """Like `save`, for a ledger that the same roles go on reporting to."""
        with self._lock:
            return {
                **self.save(),
                "done": dict(self._done),
                "open": {
                    name: dataclasses.asdict(incarnation)
                    for name, incarnation in self._incarnations.items()
                },
                "orders": dict(self._orders),
                "evaluations": self._earlier,
                "results": list(self._results),
                "given": self._given,
                "learner": dict(self._learner),
                "stop": self._stop_requested,
                "finished": self._finished,
            }

    def reopen(self, journal: Mapping[str, Any]) -> None:
        """Takes back what `journal` gave; the ledger was made with the same as its state."""
        with self._lock:
            now = time.monotonic()
            self._incarnations = {
                name: dataclasses.replace(_Incarnation(**values), seen=now)
                for name, values in journal["open"].items()
            }
            self._done, self._results = dict(journal["done"]), list(journal["results"])
            self._given, self._orders = journal["given"], dict(journal["orders"])
            self._learner = dict(journal["learner"])
            self._stop_requested, self._finished = journal["stop"], journal["finished"]
