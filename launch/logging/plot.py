"""Learning curves of runs as a picture: a panel for each environment, a line for equal runs."""

from __future__ import annotations

import math
import os
import pathlib
import textwrap
from collections.abc import Sequence
from typing import Any

import numpy as np

from ..errors import RequestError
from . import metrics
from .groups import Group, group

Curve = tuple[np.ndarray, np.ndarray]
"""Steps and returns, both [number of points]."""

_BESIDE = 6
"""More groups than these have their names beside the panel."""
_WIDTH = 46
"""Letters in a line of the legend."""


def plot(runs: Sequence[str | os.PathLike[str]], save: str | os.PathLike[str]) -> pathlib.Path:
    """Draws the evaluation returns of runs over their actor steps, or gradient steps without any.

    Every environment has a panel. Runs that differ in nothing but their seed are one line, their
    mean, within a band of one standard deviation; each of them alone is a thin line. Whatever else
    differs keeps runs apart, and is what the legend calls them by. One run alone also shows its
    training episodes; a target that runs were to reach is a line of dashes.

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

    groups = group(runs)
    panels: dict[Any, list[Group]] = {}
    for one in groups:
        panels.setdefault((one.env, one.clock), []).append(one)
    columns = math.ceil(math.sqrt(len(panels)))
    rows = math.ceil(len(panels) / columns)
    beside = max(map(len, panels.values())) > _BESIDE
    width = (7.0 if columns == 1 else 5.4) + (3.2 if beside else 0.0)
    figure = Figure(figsize=(columns * width, rows * 4.2), dpi=150, layout="constrained")
    FigureCanvasAgg(figure)
    single = sum(len(one.runs) for one in groups) == 1
    places = figure.subplots(rows, columns, squeeze=False).ravel()
    bands = [
        _draw_panel(axes, found, single)
        for axes, found in zip(places, panels.values(), strict=False)
    ]
    for axes in places[len(panels) :]:
        axes.remove()
    if not any(np.size(line.get_xdata()) for axes in figure.axes for line in axes.lines):
        raise RequestError(f"{os.fspath(runs[0])} has no returns to plot yet.")
    for axes, found in zip(figure.axes, panels.values(), strict=False):
        _draw_targets(axes, found)  # Now: what has no returns has no target either.
        _draw_legend(axes, beside)
    if any(bands):
        figure.supxlabel(
            "lines: mean over seeds; bands: one standard deviation of the seeds; thin: each seed",
            fontsize=8,
            color="0.4",
        )
    path = pathlib.Path(save)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path)
    except (OSError, ValueError) as error:
        raise RequestError(f"cannot write the picture {path}: {error}.") from error
    return path


def _draw_panel(axes: Any, groups: Sequence[Group], single: bool) -> bool:
    """Draws the runs of one environment, which go by one clock; whether there is a band."""
    env, clock = groups[0].env, groups[0].clock
    agents = {one.agent for one in groups}
    colors = palette(len(groups))
    banded = False
    for one, color in zip(groups, colors, strict=True):
        if single:
            steps, returns = _curve(one.runs[0].metrics, clock.name, "train", "return")
            if len(steps):  # In learning from data nobody plays any.
                axes.plot(steps, returns, color=color, alpha=0.35, lw=1, label="training episodes")
        curves = [_curve(run.metrics, clock.name, "evaluation", "mean") for run in one.runs]
        curves = [curve for curve in curves if len(curve[0])]
        if not curves:
            continue
        words = ([one.agent] if len(agents) > 1 else []) + list(one.differences)
        words = words or ["evaluation" if len(groups) == 1 else one.agent]
        if len(curves) > 1:
            banded = True
            for steps, returns in curves:
                axes.plot(steps, returns, color=color, alpha=0.25, lw=0.8)
            grid, means, deviations = mean_and_band(curves)
            axes.fill_between(
                grid, means - deviations, means + deviations, color=color, alpha=0.2, lw=0
            )
            words.append(f"{len(curves)} seeds")
            axes.plot(grid, means, color=color, lw=2, label=_label(words))
        else:
            if not single and len(groups) > 1 and any(len(other.runs) > 1 for other in groups):
                words.append("1 seed")
            axes.plot(*curves[0], color=color, lw=2, marker="o", ms=4, label=_label(words))
    axes.set_title(f"{groups[0].agent} on {env}" if len(agents) == 1 else env)
    axes.set_xlabel(clock.words)
    axes.set_ylabel("return")
    axes.set_xlim(left=0)
    axes.locator_params(axis="x", nbins=6)  # Millions, written out, have room.
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    return banded


def _draw_targets(axes: Any, groups: Sequence[Group]) -> None:
    for target in sorted({target for one in groups for target in one.targets}):
        axes.axhline(target, color="0.35", lw=1, ls="--", zorder=1, label=f"target {target:g}")


def _draw_legend(axes: Any, beside: bool) -> None:
    if not axes.get_legend_handles_labels()[0]:
        return
    if beside:
        axes.legend(frameon=False, fontsize=8, loc="upper left", bbox_to_anchor=(1.0, 1.0))
    else:
        axes.legend(frameon=False, fontsize=9, loc="best")


def palette(count: int) -> list[Any]:
    """So many, that can be told apart: matplotlib's, or of a scale where these are too few."""
    from matplotlib import colormaps

    if count <= 10:
        return [f"C{number}" for number in range(count)]
    return [colormaps["turbo"](0.05 + 0.9 * number / (count - 1)) for number in range(count)]


def _label(words: Sequence[str]) -> str:
    """Words of the legend in lines, each of them whole."""
    whole = ", ".join(word.replace(" ", "\0") for word in words)
    lines = textwrap.wrap(whole, _WIDTH, break_long_words=False, break_on_hyphens=False)
    return "\n".join(lines).replace("\0", " ")


def mean_and_band(curves: Sequence[Curve]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Mean and standard deviation of curves over the steps that all of them cover.

    Args:
      curves: each with at least one point, its steps rising.

    Returns:
      Steps, means and deviations, [number of points]; between the points of a curve it is taken
      to be straight.
    """
    grid, returns = aligned(curves)
    return grid, returns.mean(axis=0), returns.std(axis=0)


def aligned(curves: Sequence[Curve]) -> tuple[np.ndarray, np.ndarray]:
    """Curves over the steps that all of them cover: steps [P] and returns [number of curves, P].

    Between the points of a curve it is taken to be straight.
    """
    start = max(steps[0] for steps, _ in curves)
    end = min(steps[-1] for steps, _ in curves)
    grid = np.unique(np.concatenate([steps for steps, _ in curves]))
    within = grid[(grid >= start) & (grid <= end)]
    grid = within if len(within) else np.array([end])
    return grid, np.stack([np.interp(grid, *curve) for curve in curves])


def _curve(path: pathlib.Path, clock: str, kind: str, name: str) -> Curve:
    if not path.exists():
        return np.array([]), np.array([])
    rows = [row for row in metrics.read(path, kind) if row.get(name) is not None]
    steps = np.array([row[clock] for row in rows], float)
    return steps, np.array([row[name] for row in rows], float)
