"""Watching a run: rows of metrics and the status line, each when it is due."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from ..callbacks import Callbacks
from ..clock import ACTOR_STEPS, StepCount
from ..episodes import INFO, mean_info, success_text
from . import metrics, report

_STATUS_SECONDS = 0.5
_RECENT = 20

Counts = Mapping[str, Any]
Episodes = Sequence[Sequence[Any]]
"""Fields of `episodes.EndedEpisode`; what an earlier version wrote has no third."""


class Numbers(NamedTuple):
    """The numbers of training at one time."""

    replay_size: int
    samples_per_insert: float
    """As observed."""
    metrics: Mapping[str, float]
    """Of the newest gradient step."""


class Monitor:
    """Reads the counters of a run and the metrics of its learner, and tells them.

    Attributes:
      next_time: value of `time.perf_counter()` at which there is something to tell.
    """

    def __init__(
        self,
        rows: metrics.MetricsWriter,
        reporter: report.Reporter,
        max_size: int | None,
        numbers: Callable[[], Numbers],
        callbacks: Callbacks,
        before: Counts,
        clock: StepCount = ACTOR_STEPS,
    ):
        """Begins to watch.

        Args:
          rows: where they are written.
          reporter: who is told.
          max_size: items that the replay can hold; None: there is none to be filled.
          numbers: asked for when they are due; may wait for a device.
          callbacks: told of every row.
          before: counts that the run goes on from; empty at its start.
          clock: what the run goes by.
        """
        self._max_size, self._numbers, self._clock = max_size, numbers, clock
        self._rows = rows
        self._reporter = reporter
        self._began = now = time.perf_counter()
        self._status_at = now + _STATUS_SECONDS
        self._row_at = now + 1.0
        self._last: tuple[float, Counts] | None = None
        self._callbacks, self._written = callbacks, before
        self._warned: set[str] = set()
        self.line = reporter.line
        self.sync = rows.sync

    @property
    def next_time(self) -> float:
        return min(self._status_at, self._row_at)

    def go_back(self, counters: Counts) -> None:
        """Forgets the steps after a checkpoint, which will be done again.

        Args:
          counters: of the checkpoint; empty: there was none.
        """
        self._rows.go_back(counters.get(self._clock.name, 0), counters.get("evaluations", 0))
        self._written, self._last = counters, None

    def starting(self, roles: Sequence[str]) -> None:
        """Reports, when it is due, which roles a run waits for before its first step.

        Args:
          roles: names of those that are not at work yet.
        """
        now = time.perf_counter()
        if now >= self._status_at:
            self._status_at = now + _STATUS_SECONDS
            self._reporter.status(report.Starting(tuple(roles), now - self._began))

    def look(self, counts: Counts, episodes: Episodes, budget: int) -> None:
        """Reports whatever is due.

        Args:
          counts: the run's (`metrics.COUNTS`).
          episodes: the newest, the newest last.
          budget: in steps of the clock.
        """
        now = time.perf_counter()
        if now >= self._status_at:
            self._status_at = now + _STATUS_SECONDS
            self._tell_status(now, counts, episodes, budget)
        if now >= self._row_at:
            # Short runs get fine curves, long ones small files.
            self._row_at = now + min(max(counts["wall_seconds"] / 100, 1.0), 10.0)
            self.write_row(counts, episodes)

    def write_row(self, counts: Counts, episodes: Episodes) -> None:
        """Writes a row with the numbers of training."""
        row: dict[str, Any] = {"kind": "train", **counts}
        recent = list(episodes)[-_RECENT:]
        if recent:
            row["return"] = float(np.mean([episode[0] for episode in recent]))
            row["episode_length"] = float(np.mean([episode[1] for episode in recent]))
            row |= mean_info(info for episode in recent for info in episode[2:])
        numbers = self._numbers()
        row["replay_size"] = numbers.replay_size
        row["samples_per_insert"] = numbers.samples_per_insert
        row |= {**self._rates(counts), **numbers.metrics}
        self._write("on_metrics", row)
        for name, value in numbers.metrics.items():
            if not math.isfinite(value) and name not in self._warned:
                self._warned.add(name)
                at = f"{counts[self._clock.name]:,} {self._clock.words}"
                self.line(f"warning: {name} is {value} at {at}")

    def evaluated(self, counts: Counts, summary: Mapping[str, Any]) -> None:
        """Writes and tells an evaluation (`evaluation.Outcome.to_monitor`)."""
        info = {name: value for name, value in summary.items() if name.startswith(INFO)}
        numbers = {name: summary[name] for name in ("mean", "std", "min", "max")} | info
        episodes = summary["episodes"]
        steps, words = counts[self._clock.name], self._clock.words
        told = summary["mean"], summary["std"], episodes, success_text(summary)
        self._reporter.evaluated(report.Evaluated(steps, words, *told))
        self._write(
            "on_evaluation", {"kind": "evaluation", **counts, "evaluated": episodes, **numbers}
        )
        if texts := summary.get("texts"):
            self._rows.write_texts(texts, steps)

    def _write(self, hook: str, row: dict[str, Any]) -> None:
        """Shows a row to callbacks and writes it, with what they have added."""
        shown = dict(row)
        try:
            self._callbacks.call(hook, shown)
        finally:
            added = {name: value for name, value in shown.items() if name not in row}
            for name, value in added.items():
                if not metrics.can_hold(value) and name not in self._warned:
                    self._warned.add(name)
                    self.line(
                        f"warning: {name!r}, which a callback added to a row, is left out: it is a "
                        f"{type(value).__name__}, and rows hold numbers and texts"
                    )
            kept = {name: value for name, value in added.items() if metrics.can_hold(value)}
            self._rows.write({**row, **kept})

    def _rates(self, counts: Counts) -> dict[str, float]:
        """Steps a second of training since the last row."""
        before, self._written = self._written, counts
        seconds = counts["train_seconds"] - before.get("train_seconds", 0.0)
        if seconds <= 0:
            return {}
        return {
            f"{name}_per_second": (counts[name] - before.get(name, 0)) / seconds
            for name in ("actor_steps", "learner_steps")
        }

    def _tell_status(self, now: float, counts: Counts, episodes: Episodes, budget: int) -> None:
        last, self._last = self._last, (now, counts)
        if last is None:
            return
        then, before = last
        actor_rate, learner_rate = (
            (counts[name] - before[name]) / (now - then)
            for name in ("actor_steps", "learner_steps")
        )
        acts = self._clock == ACTOR_STEPS
        left, rate = budget - counts[self._clock.name], actor_rate if acts else learner_rate
        if left <= 0 and not actor_rate and not learner_rate:
            return  # All that is waited for is the last evaluation.
        recent = [episode[0] for episode in list(episodes)[-_RECENT:]]
        self._reporter.status(
            report.Status(
                actor_steps=counts["actor_steps"] if acts else None,
                budget=budget,
                learner_steps=counts["learner_steps"],
                episode_return=float(np.mean(recent)) if recent else None,
                actor_rate=actor_rate,
                learner_rate=learner_rate,
                replay_fill=self._fill(),
                seconds_left=left / rate if rate > 0 else None,
            )
        )

    def _fill(self) -> float | None:
        return self._numbers().replay_size / self._max_size if self._max_size else None
