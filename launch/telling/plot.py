"""Learning curves of one run or several, as a picture."""

from __future__ import annotations

import os
import pathlib
from collections.abc import Sequence

import numpy as np

from ..clock import ACTOR_STEPS, LEARNER_STEPS, StepCount
from ..errors import RequestError
from ..files.directory import RunDirectory
from . import metrics

Curve = tuple[np.ndarray, np.ndarray]
"""Actor steps and returns, both [number of points]."""


def plot(runs: Sequence[str | os.PathLike[str]], save: str | os.PathLike[str]) -> pathlib.Path:
    """Draws the evaluation returns of runs over their actor steps.

    Runs of the same agent and environment are one line, their mean, within a band of one standard
    deviation; each seed alone is a thin line. One run alone also shows its training episodes.

    Args:
      runs: directories of runs, ended or not.
      save: file of the picture; its ending says the format.

    Returns:
      The file.

    Raises:
      RequestError: if a directory is no run's or has no rows yet, or the file cannot be written.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    groups: dict[str, list[RunDirectory]] = {}
    for run in runs:
        directory = RunDirectory(run)
        config = directory.read_config()
        groups.setdefault(f"{config['agent']} on {config['env']}", []).append(directory)

    figure = Figure(figsize=(7, 4.2), dpi=150, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    single = len(runs) == 1
    for number, (label, directories) in enumerate(groups.items()):
        color = f"C{number}"
        if single:
            steps, returns = _curve(directories[0], "train", "return")
            axes.plot(steps, returns, color=color, alpha=0.35, lw=1, label="training episodes")
        curves = [_curve(directory, "evaluation", "mean") for directory in directories]
        curves = [curve for curve in curves if len(curve[0])]
        if len(curves) > 1:
            for steps, returns in curves:
                axes.plot(steps, returns, color=color, alpha=0.25, lw=0.8)
            grid, means, deviations = mean_and_band(curves)
            axes.fill_between(grid, means - deviations, means + deviations, color=color, alpha=0.2)
            axes.plot(grid, means, color=color, lw=2, label=f"{label} ({len(curves)} runs)")
        elif curves:
            name = "evaluation" if single else label
            axes.plot(*curves[0], color=color, lw=2, marker="o", ms=4, label=name)
    if not axes.lines or not any(len(line.get_xdata()) for line in axes.lines):  # type: ignore[arg-type]
        raise RequestError(f"{os.fspath(runs[0])} has no returns to plot yet.")
    if len(groups) == 1:
        axes.set_title(next(iter(groups)))
    clocks = {_clock(one).words for directories in groups.values() for one in directories}
    axes.set_xlabel(" or ".join(sorted(clocks)))
    axes.set_ylabel("return")
    axes.set_xlim(left=0)
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, loc="best")
    path = pathlib.Path(save)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path)
    except (OSError, ValueError) as error:
        raise RequestError(f"cannot write the picture {path}: {error}.") from error
    return path


def mean_and_band(curves: Sequence[Curve]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Mean and standard deviation of curves over the steps that all of them cover.

    Args:
      curves: each with at least one point, its steps rising.

    Returns:
      Steps, means and deviations, [number of points]; between the points of a curve it is taken
      to be straight.
    """
    start = max(steps[0] for steps, _ in curves)
    end = min(steps[-1] for steps, _ in curves)
    grid = np.unique(np.concatenate([steps for steps, _ in curves]))
    within = grid[(grid >= start) & (grid <= end)]
    grid = within if len(within) else np.array([end])
    returns = np.stack([np.interp(grid, *curve) for curve in curves])
    return grid, returns.mean(axis=0), returns.std(axis=0)


def _clock(directory: RunDirectory) -> StepCount:
    """What the run went by: nobody acts where an agent learns from data."""
    return ACTOR_STEPS if directory.read_config().get("data") is None else LEARNER_STEPS


def _curve(directory: RunDirectory, kind: str, name: str) -> Curve:
    clock = _clock(directory)
    if not directory.metrics.exists():
        return np.array([]), np.array([])
    rows = [row for row in metrics.read(directory.metrics, kind) if row.get(name) is not None]
    steps = np.array([row[clock.name] for row in rows], float)
    return steps, np.array([row[name] for row in rows], float)
