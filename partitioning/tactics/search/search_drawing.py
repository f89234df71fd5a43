"""Draws a search: its best estimates over time, and the simulator's figures for the candidates."""

from __future__ import annotations

import os
import textwrap
from typing import Any

from ...simulator import pictures
from .automatic import SearchLog

_TAKEN, _OTHER, _THOUGHT = "#3d5a80", "#9db4c0", "#e07a5f"
_LETTERS, _LINES = 54, 3


def save_search(log: SearchLog, path: str | os.PathLike[str]) -> None:
    """Draws the log of a search into a file; the ending of its name gives the format.

    Raises:
      ImportError: matplotlib is not installed.
      ValueError: if the file cannot be written, or its ending is that of no picture.
    """
    pictures.write(search_figure(log), path)


def search_figure(log: SearchLog) -> Any:
    """A matplotlib figure with two panels: the least estimate so far, and those judged in full."""
    judged = [tried for tried in log.judged if tried.seconds is not None]
    figure = pictures.blank(12, 2.4 + 0.62 * len(judged), layout="constrained")
    best, bars = figure.subplots(1, 2, width_ratios=(2, 3))
    made = [point[0] for point in log.best] + [log.estimates]
    least = [1e3 * point[1] for point in log.best]
    best.step(made, [*least, least[-1]], where="post", color=_THOUGHT)
    best.plot(made[:-1], least, "o", color=_THOUGHT, markersize=4)
    best.margins(y=0.2)
    best.set_xlabel("candidates estimated")
    best.set_ylabel("least time so far, as estimated (ms)")
    best.set_title(f"{log.estimates} candidates, {log.classes[0]} of {log.classes[1]} ops")
    places = range(len(judged))
    seconds = [1e3 * (tried.seconds or 0.0) for tried in judged]
    colours = [_TAKEN] + [_OTHER] * (len(judged) - 1)
    bars.barh(places, seconds, color=colours, height=0.6, label="simulated")
    thought = [1e3 * tried.estimated_seconds for tried in judged]
    bars.plot(thought, places, "d", color=_THOUGHT, label="estimated")
    bars.set_yticks(list(places), [_text(tried.moves) for tried in judged], fontsize=7)
    bars.invert_yaxis()
    bars.set_xlim(0, 1.18 * max([*seconds, *thought]))
    for place, (tried, cost) in enumerate(zip(judged, seconds, strict=True)):
        nbytes = (tried.bytes or 0) / 2**30
        at = max(cost, thought[place])
        bars.text(at, place, f"  {cost:.3g} ms, {nbytes:.2f} GiB", va="center", fontsize=7)
    bars.set_xlabel("time of a step (ms)")
    bars.set_title("judged in full, the taken one first")
    figure.legend(loc="outside lower right", ncols=2, fontsize=8)
    for panel in (best, bars):
        panel.spines[["top", "right"]].set_visible(False)
    return figure


def _text(moves: tuple[str, ...]) -> str:
    """The moves in a few short lines."""
    lines = textwrap.wrap("; ".join(moves) or "as it is", _LETTERS)
    if len(lines) > _LINES:
        lines = [*lines[: _LINES - 1], lines[_LINES - 1][: _LETTERS - 4] + " ..."]
    return "\n".join(lines)
