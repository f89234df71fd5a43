"""A sweep as a picture: returns over trials, their evaluations, and returns over each field."""

from __future__ import annotations

import math
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

from . import outcome
from .request import SweepRequest
from .space import Choices, Dimension
from .study import Tried

_COLUMNS = 3
_STATES = {
    "complete": {"marker": "o", "label": "complete"},
    "pruned": {"marker": "v", "label": "pruned, at its last evaluation"},
    "running": {"marker": "s", "label": "not ended"},
}


def draw(
    request: SweepRequest,
    tried: Sequence[Tried],
    importances: Mapping[str, float],
    save: pathlib.Path,
) -> None:
    """Draws what is known so far; nothing where no trial has been evaluated yet.

    Args:
      request: what was asked.
      tried: the trials.
      importances: by field, as parts of 1; those of which nothing can be said may be missing.
      save: file of the picture.
    """
    shown = [one for one in tried if one.state in _STATES and math.isfinite(_value(one))]
    if not shown:
        return
    from matplotlib import colormaps, colors
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    rows = 1 + math.ceil(len(request.space) / _COLUMNS)
    figure = Figure(figsize=(11, 3.6 * rows), dpi=130, layout="constrained")
    FigureCanvasAgg(figure)
    top, *lower = figure.subfigures(rows, 1, squeeze=False)[:, 0]
    values = [_value(one) for one in shown]
    scale = colors.Normalize(min(values), max(*values, min(values) + 1e-9))
    paint = colormaps["viridis"]

    def color(one: Tried) -> Any:
        return paint(0.92 * scale(_value(one)))

    left, right = top.subplots(1, 2)
    _draw_trials(left, request, tried, shown, color)
    _draw_evaluations(right, request, shown, color)
    fields = list(request.space.items())
    for row, subfigure in enumerate(lower):
        some = fields[row * _COLUMNS : (row + 1) * _COLUMNS]
        width = min(len(fields), _COLUMNS)
        panels = subfigure.subplots(1, width, squeeze=False, sharey=True)[0]
        for axes, (name, dimension) in zip(panels, some, strict=False):
            _draw_field(axes, name, dimension, shown, color, importances.get(name))
        for axes in panels[len(some) :]:
            axes.remove()
        panels[0].set_ylabel("return")
    for axes in figure.axes:
        axes.grid(alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)
    recipe = request.recipe
    figure.suptitle(f"{recipe.agent} on {recipe.env}: {_summary(request, tried)}")
    figure.savefig(save)


def _value(one: Tried) -> float:
    """The return that is drawn."""
    return math.nan if one.value is None else one.value


def _summary(request: SweepRequest, tried: Sequence[Tried]) -> str:
    found = outcome.best(tried)
    if found is None:
        return f"{len(tried)} trials"
    settings = ", ".join(f"{name} {outcome.number(found.settings[name])}" for name in request.space)
    return f"trial {found.number} of {len(tried)} is the best, {found.value:.1f} with {settings}"


def _draw_trials(
    axes: Any, request: SweepRequest, tried: Sequence[Tried], shown: Sequence[Tried], color: Any
) -> None:
    """Returns over trials, and the best so far."""
    _scatter(axes, [one.number for one in shown], shown, color)
    steps, heights, height = [], [], -math.inf
    for one in tried:
        if one.state == "complete" and one.value is not None:
            height = max(height, one.value)
        if math.isfinite(height):
            steps.append(one.number)
            heights.append(height)
    axes.step(steps, heights, where="post", color="0.4", lw=1.2, zorder=1, label="best so far")
    target = request.recipe.evaluation.target_return
    if target is not None:
        axes.axhline(target, color="C3", lw=1, ls="--", label=f"target {target:g}")
    failed = [one.number for one in tried if one.state == "failed"]
    if failed:
        bottom = min(one.value for one in shown if one.value is not None)
        axes.scatter(failed, [bottom] * len(failed), marker="x", color="C3", label="failed")
    axes.set(xlabel="trial", ylabel="return", title="Trials")
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.legend(frameon=False, fontsize=8)


def _draw_evaluations(axes: Any, request: SweepRequest, shown: Sequence[Tried], color: Any) -> None:
    """The way of each trial; where one was pruned it ends."""
    found = outcome.best(shown)
    for one in sorted(shown, key=lambda one: one.value or 0.0):
        values = [value if math.isfinite(value) else math.nan for value in one.evaluations.values()]
        is_best = one is found
        axes.plot(
            list(one.evaluations),
            values,
            color=color(one),
            lw=2.4 if is_best else 1.2,
            ls="-" if one.state == "complete" else ":",
            label=f"trial {one.number}, the best" if is_best else None,
        )
        if one.state == "pruned":
            axes.scatter([len(values)], values[-1:], marker="v", color=[color(one)], s=30)
    axes.set(xlabel="evaluation", ylabel="return", title="On their way; dotted: pruned")
    axes.xaxis.get_major_locator().set_params(integer=True)
    if found is not None:
        axes.legend(frameon=False, fontsize=8)


def _draw_field(
    axes: Any,
    name: str,
    dimension: Dimension,
    shown: Sequence[Tried],
    color: Any,
    importance: float | None,
) -> None:
    """Returns over the values of one field."""
    if isinstance(dimension, Choices):
        places = {text: place for place, text in enumerate(dimension.texts)}
        xs = [places[one.settings[name]] for one in shown]
        axes.set_xticks(list(places.values()), list(places))
        axes.set_xlim(-0.5, len(places) - 0.5)
    else:
        xs = [one.settings[name] for one in shown]
        if dimension.log:
            axes.set_xscale("log")
        axes.set_xlim(*_margins(dimension.low, dimension.high, dimension.log))
    _scatter(axes, xs, shown, color)
    explained = "" if importance is None else f" ({importance:.0%} of the importance)"
    axes.set(xlabel=name, title=f"{name}{explained}")


def _scatter(axes: Any, xs: Sequence[float], shown: Sequence[Tried], color: Any) -> None:
    for state, style in _STATES.items():
        points = [(x, one) for x, one in zip(xs, shown, strict=True) if one.state == state]
        if points:
            full = state == "complete"
            colors = [color(one) for _, one in points]
            axes.scatter(
                [x for x, _ in points],
                [one.value for _, one in points],
                s=44,
                zorder=3,
                facecolors=colors if full else "none",
                edgecolors=colors,
                alpha=0.8,  # Trials of one value and one return are seen to be several.
                **style,
            )


def _margins(low: float, high: float, log: bool) -> tuple[float, float]:
    """The ends of an axis, a little beyond those of the range."""
    if log:
        beyond = (high / low) ** 0.04
        return low / beyond, high * beyond
    return low - 0.04 * (high - low), high + 0.04 * (high - low)
