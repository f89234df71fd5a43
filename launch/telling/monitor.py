"""Watching a run: rows of metrics and the status line, each when it is due."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ..local.components import Parts
from . import metrics, report

_STATUS_SECONDS = 0.5
_RECENT = 20

Counts = Mapping[str, Any]
Episodes = Sequence[tuple[float, int]]


class Monitor:
    """Reads the counters of a run and the metrics of its learner, and tells them.

    Attributes:
      next_time: value of `time.perf_counter()` at which there is something to tell.
    """

    def __init__(self, parts: Parts, rows: metrics.MetricsWriter, reporter: report.Reporter):
        self._parts = parts
        self._rows = rows
        self._reporter = reporter
        now = time.perf_counter()
        self._status_at = now + _STATUS_SECONDS
        self._row_at = now + 1.0
        self._last: tuple[float, Counts] | None = None
        self._warned: set[str] = set()
        self.line = reporter.line
        self.sync = rows.sync

    @property
    def next_time(self) -> float:
        return min(self._status_at, self._row_at)

    def look(self, counts: Counts, episodes: Episodes, budget: int) -> None:
        """Tells what is due.

        Args:
          counts: the run's (`metrics.COUNTS`).
          episodes: return and length of the newest, the newest last.
          budget: in actor steps.
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
        """Writes how training goes."""
        row: dict[str, Any] = {"kind": "train", **counts}
        recent = list(episodes)[-_RECENT:]
        if recent:
            row["return"] = float(np.mean([episode[0] for episode in recent]))
            row["episode_length"] = float(np.mean([episode[1] for episode in recent]))
        row["replay_size"] = len(self._parts.replay)
        row["samples_per_insert"] = self._parts.replay.observed_samples_per_insert
        learned = self._parts.learner.metrics()
        self._rows.write({**row, **learned})
        for name, value in learned.items():
            if not math.isfinite(value) and name not in self._warned:
                self._warned.add(name)
                self.line(f"warning: {name} is {value} at {counts['actor_steps']:,} actor steps")

    def evaluated(self, counts: Counts, summary: Mapping[str, Any]) -> None:
        """Writes and tells an evaluation (`evaluation.Outcome.summary`)."""
        numbers = {name: summary[name] for name in ("mean", "std", "min", "max")}
        episodes = summary["episodes"]
        self._rows.write({"kind": "evaluation", **counts, "evaluated": episodes, **numbers})
        self.line(
            f"evaluation at {summary['actor_steps']:,} actor steps: return {summary['mean']:.1f} "
            f"+- {summary['std']:.1f} over {episodes} episodes"
        )

    def _tell_status(self, now: float, counts: Counts, episodes: Episodes, budget: int) -> None:
        last, self._last = self._last, (now, counts)
        if last is None:
            return
        then, before = last
        actor_rate, learner_rate = (
            (counts[name] - before[name]) / (now - then)
            for name in ("actor_steps", "learner_steps")
        )
        left = budget - counts["actor_steps"]
        if left <= 0 and not actor_rate and not learner_rate:
            return  # All that is waited for is the last evaluation.
        recent = [episode[0] for episode in list(episodes)[-_RECENT:]]
        self._reporter.status(
            report.Status(
                actor_steps=counts["actor_steps"],
                budget=budget,
                learner_steps=counts["learner_steps"],
                episode_return=float(np.mean(recent)) if recent else None,
                actor_rate=actor_rate,
                learner_rate=learner_rate,
                replay_fill=len(self._parts.replay) / self._parts.replay.spec.max_size,
                seconds_left=left / actor_rate if actor_rate > 0 else None,
            )
        )
