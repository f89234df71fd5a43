"""Finds the runs below paths, and groups those that are seeds of the same."""

from __future__ import annotations

import dataclasses
import os
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ...launch.clock import StepCount
from ...launch.errors import RequestError
from ...launch.files.directory import RunDirectory
from ...launch.logging import metrics
from ...launch.logging.groups import group
from ..settings import find

Curve = tuple[np.ndarray, np.ndarray]
_RESULT = "result.json"
_FIELDS = {"agent", "env", "seed", "evaluation", "wall_seconds", "train_seconds", "versions"}


@dataclasses.dataclass(frozen=True)
class Seed:
    """A run that ended."""

    directory: RunDirectory
    config: Mapping[str, Any]
    result: Mapping[str, Any]

    @property
    def number(self) -> int:
        return self.result["seed"]

    @property
    def final(self) -> float:
        """Mean return of the last evaluation."""
        return float(self.result["evaluation"][-1]["mean"])

    def curve(self, clock: StepCount) -> Curve:
        """Steps and mean returns of its evaluations."""
        rows = self.result["evaluation"]
        steps = np.array([row[clock.name] for row in rows], float)
        return steps, np.array([row["mean"] for row in rows], float)

    def curve_in_time(self) -> Curve | None:
        """Seconds of training and mean returns; None where the run kept no metrics."""
        path = self.directory.metrics
        rows = list(metrics.read(path, "evaluation")) if path.exists() else []
        if not rows:
            return None
        seconds, means = ([row[name] for row in rows] for name in ("train_seconds", "mean"))
        return np.array(seconds, float), np.array(means, float)


@dataclasses.dataclass(frozen=True)
class Entry:
    """Runs that differ in nothing but their seed."""

    name: str
    """The agent's, and what sets it apart from other entries of the agent there."""
    env: str
    clock: StepCount
    target: float | None
    """Return that its runs were to reach, or that is known for good ones; None: neither."""
    seeds: tuple[Seed, ...]

    @property
    def returns(self) -> np.ndarray:
        """Of the final evaluations, [number of seeds]."""
        return np.array([seed.final for seed in self.seeds])


def collect(paths: Sequence[str | os.PathLike[str]]) -> list[Entry]:
    """The entries of all runs that ended in these directories or below them, by environment.

    Args:
      paths: directories of runs, or folders with such below them.

    Raises:
      RequestError: if there is none in one of them, one that is named has not ended, a result is
        damaged or of something else, or one seed of an entry was run twice.
    """
    found: dict[str, Seed] = {}
    for path in map(pathlib.Path, paths):
        for directory in _directories(path):
            found.setdefault(os.path.realpath(directory), _read(directory))
    entries = [
        Entry(
            ", ".join((one.agent, *one.differences)),
            one.env,
            one.clock,
            max(one.targets, default=_tuned_target(one.agent, one.env)),
            _seeds(found[os.path.realpath(run.path)] for run in one.runs),
        )
        for one in group(list(found))
    ]
    return sorted(entries, key=lambda one: (one.env, one.name))


def _tuned_target(agent: str, env: str) -> float | None:
    tuned = find(agent, env)
    return None if tuned is None else tuned.target


def _directories(path: pathlib.Path) -> list[pathlib.Path]:
    """The directories of the runs that a path stands for."""
    if not path.is_dir():
        raise RequestError(f"there is no folder {path}; name directories of runs, or one above.")
    if (path / _RESULT).exists():
        return [path]
    if (path / "config.json").exists():
        raise RequestError(
            f"the run in {path} has not ended: it has no {_RESULT}; `troupe resume {path}` first."
        )
    found = sorted(file.parent for file in path.rglob(_RESULT))
    if not found:
        raise RequestError(f"no run has ended in {path} or below: there is no {_RESULT}.")
    return found


def _read(path: pathlib.Path) -> Seed:
    directory = RunDirectory(path)
    result = directory.read_result()
    if not isinstance(result, dict) or not set(result) >= _FIELDS or not result["evaluation"]:
        raise RequestError(f"{directory.result} is not the result of a run of troupe's.")
    return Seed(directory, directory.read_config(), result)


def _seeds(runs: Any) -> tuple[Seed, ...]:
    """In order.

    Raises:
      RequestError: if two are the same, which would count as two draws where there is one.
    """
    seeds: dict[int, Seed] = {}
    for run in runs:
        other = seeds.setdefault(run.number, run)
        if other is not run:
            raise RequestError(
                f"{other.directory.path} and {run.directory.path} are runs of the same settings "
                f"and the same seed, {run.number}; name one of them."
            )
    return tuple(seeds[number] for number in sorted(seeds))
