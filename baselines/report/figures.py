"""The pictures of the page: returns with their intervals, performance profiles, learning curves."""

from __future__ import annotations

import math
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from ...launch.errors import RequestError
from ...launch.logging.plot import aligned, palette
from .. import statistics
from .runs import Curve, Entry
from .summary import Together, by_environment, estimate

Curves = Callable[[Entry], Sequence[Curve]]
_BAND = 0.2  # How dark.
_POINTS = 201  # Of a profile.


def draw_returns(entries: Sequence[Entry], path: pathlib.Path) -> None:
    """A panel for each environment, a line for each entry: its interquartile mean, the interval
    around it, and every seed."""
    colors = _colors(entries)

    def panel(axes: Any, some: Sequence[Entry]) -> None:
        # A bar at the edge would hide where it ends; limits are taken as bars are drawn.
        axes.use_sticky_edges = False
        for row, one in enumerate(some):
            found, color = estimate([one.returns]), colors[one.name]
            axes.barh(row, found.high - found.low, left=found.low, height=0.55, color=color,
                      alpha=2 * _BAND, lw=0)  # fmt: skip
            axes.plot([found.mean] * 2, [row - 0.28, row + 0.28], color=color, lw=2.5)
            axes.plot(one.returns, [row] * len(one.returns), "o", color="0.25", ms=3, alpha=0.6)
        _draw_targets(axes.axvline, some)
        axes.set_yticks(range(len(some)), [one.name for one in some], fontsize=8)
        axes.set_ylim(len(some) - 0.5, -0.5)
        axes.set_xlabel("return")

    rows = max(map(len, by_environment(entries).values()))
    draw_panels(
        by_environment(entries), panel, path, height=1.2 + 0.34 * rows,
        caption="lines: interquartile mean; bars: its 95 % interval; dots: each seed; "
        "dashes: target",
    )  # fmt: skip


def draw_curves(
    entries: Sequence[Entry], path: pathlib.Path, curves: Curves, words: Callable[[Entry], str]
) -> None:
    """A panel for each environment: the interquartile mean over seeds, its interval as a band.

    Args:
      entries: of at least one run.
      path: of the picture.
      curves: of the seeds of each entry.
      words: what they are over.
    """
    colors = _colors(entries)

    def panel(axes: Any, some: Sequence[Entry]) -> None:
        for one in some:
            color = colors[one.name]
            grid, returns = aligned(curves(one))
            points = returns.T  # Each point of the curve with its seeds, [P, number of seeds].
            axes.plot(grid, statistics.interquartile_mean(points), color=color, lw=2,
                      marker="o" if len(grid) == 1 else None, label=one.name)  # fmt: skip
            if returns.shape[0] > 1:
                axes.fill_between(grid, *_bands(points), color=color, alpha=_BAND, lw=0)
        _draw_targets(axes.axhline, some)
        axes.set_xlim(left=0)
        axes.set_xlabel(" and ".join(dict.fromkeys(map(words, some))))
        axes.set_ylabel("return")
        _draw_legend(axes)

    draw_panels(
        by_environment(entries), panel, path,
        caption="lines: interquartile mean over seeds; bands: its 95 % interval; dashes: target",
    )  # fmt: skip


def draw_profiles(
    entries: Sequence[Entry], everywhere: Sequence[Together], path: pathlib.Path
) -> None:
    """A panel for each environment: the share of runs above each return; and one of all together,
    where returns are scaled."""
    panels: dict[str, list[tuple[str, Sequence[np.ndarray]]]] = {
        env: [(one.name, [one.returns]) for one in some]
        for env, some in by_environment(entries).items()
    }
    if everywhere:
        panels["all environments"] = [(one.name, one.scores) for one in everywhere]
    colors = _colors(entries)

    def panel(axes: Any, some: Sequence[tuple[str, Sequence[np.ndarray]]]) -> None:
        values = np.concatenate([x for _, strata in some for x in strata])
        margin = 0.05 * (np.ptp(values) or max(1.0, abs(values[0])))
        grid = np.linspace(values.min() - margin, values.max() + margin, _POINTS)
        for name, strata in some:
            low, high = statistics.interval(
                strata, lambda drawn: statistics.profile(drawn, grid), resamples=2_000
            )
            share = statistics.profile(strata, grid)
            axes.step(grid, share, where="post", color=colors[name], lw=2, label=name)
            axes.fill_between(grid, low, high, step="post", color=colors[name], alpha=_BAND, lw=0)
        axes.set_ylim(-0.02, 1.02)
        axes.set_xlabel("return" if axes.get_title() != "all environments" else "scaled return")
        axes.set_ylabel("share of runs above")
        _draw_legend(axes)

    draw_panels(panels, panel, path, caption="bands: 95 % intervals")


def _bands(points: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The ends [P] of the interval of every point [P, number of seeds]; the same seeds are drawn
    for all points."""
    n = points.shape[-1]
    drawn = np.random.default_rng(0).integers(n, size=(2_000, n))
    means = statistics.interquartile_mean(points[:, drawn])
    low, high = np.quantile(means, [0.025, 0.975], axis=1)
    return low, high


def _colors(entries: Sequence[Entry]) -> dict[str, Any]:
    """One for each name, the same in all panels."""
    names = list(dict.fromkeys(entry.name for entry in entries))
    return dict(zip(names, palette(len(names)), strict=True))


def _draw_targets(line: Callable[..., Any], some: Sequence[Entry]) -> None:
    for target in sorted({one.target for one in some if one.target is not None}):
        line(target, color="0.35", lw=1, ls="--", zorder=1)


def _draw_legend(axes: Any) -> None:
    axes.legend(frameon=False, fontsize=8, loc="best")


def draw_panels(
    panels: Mapping[str, Any],
    draw: Callable[[Any, Any], None],
    path: pathlib.Path,
    *,
    caption: str,
    height: float = 3.6,
) -> None:
    """Draws what belongs to each title into a panel of its own.

    Raises:
      RequestError: if the picture cannot be written.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.ticker import AutoLocator

    columns = min(len(panels), 3 if len(panels) > 4 else 2)
    rows = math.ceil(len(panels) / columns)
    figure = Figure(figsize=(columns * 5.4, rows * height + 0.3), dpi=130, layout="constrained")
    FigureCanvasAgg(figure)
    places = figure.subplots(rows, columns, squeeze=False).ravel()
    for axes, (title, content) in zip(places, panels.items(), strict=False):
        axes.set_title(title)
        draw(axes, content)
        if isinstance(axes.xaxis.get_major_locator(), AutoLocator):
            axes.locator_params(axis="x", nbins=5)  # Millions, written out, have room.
            axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.10g}")
        axes.grid(alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)
    for axes in places[len(panels) :]:
        axes.remove()
    figure.supxlabel(caption, fontsize=8, color="0.4")
    try:
        figure.savefig(path)
    except OSError as error:
        raise RequestError(f"cannot write the picture {path}: {error}.") from error
