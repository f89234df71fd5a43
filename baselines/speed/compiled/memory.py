"""The resident memory of a compiled run, which checkpoints and writes metrics as it goes on."""

from __future__ import annotations

import os
import pathlib
import tempfile
import time
from collections.abc import Mapping
from typing import Any

from .... import launch
from ....launch import Callback, StopRun
from . import cases

_EVERY = 30.0
"""Seconds between two readings, about: they are taken with rows of metrics."""
_SETTLED = 0.25
"""Part of the time after which all that a run needs is there."""


class Readings(Callback):
    """Reads the memory of this process, until the time is over.

    Attributes:
      found: (seconds since the first, MiB, actor steps) of each.
    """

    fatal = True

    def __init__(self, seconds: float, every: float = _EVERY):
        """Takes the seconds of the whole, and those between two readings."""
        self._seconds, self._every = seconds, every
        self._began: float | None = None
        self.found: list[tuple[float, float, int]] = []

    def on_metrics(self, row: Mapping[str, Any]) -> None:
        now = time.perf_counter()
        self._began = self._began or now
        taken = now - self._began
        if self.found and self.found[-1][0] >= self._seconds:
            return  # The row that ends a run.
        if not self.found or taken - self.found[-1][0] >= self._every or taken >= self._seconds:
            self.found.append((taken, resident(), row["actor_steps"]))
        if taken >= self._seconds:
            raise StopRun("watched for long enough")


def resident() -> float:
    """Returns the resident memory of this process in MiB."""
    pages = int(pathlib.Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def watch(case: cases.CompiledCase, seconds: float, every: float = _EVERY) -> dict[str, Any]:
    """Runs a case for so many seconds.

    Returns:
      `readings`, and `growth`: MiB from the first reading after a quarter of the time to the last.
    """
    readings = Readings(seconds, every)
    made = cases.experiment(case, "jax:CartPole-v1", [readings])
    with tempfile.TemporaryDirectory(prefix="speed-") as folder:
        launch.run(made, pathlib.Path(folder) / "run", kind="compiled", progress=False)
    found = readings.found
    settled = next(one for one in found if one[0] >= _SETTLED * seconds)
    return {"agent": case.agent, "readings": found, "growth": found[-1][1] - settled[1]}


def table(found: Mapping[str, Any]) -> str:
    """Returns the readings as lines."""
    lines = [f"{'seconds':>8} {'MiB':>9} {'env steps':>14}"]
    lines += [f"{at:8.0f} {size:9.1f} {steps:14,}" for at, size, steps in found["readings"]]
    return "\n".join([*lines, f"growth after a quarter of the time: {found['growth']:+.1f} MiB"])
