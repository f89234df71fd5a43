"""The rates of a grid as a picture."""

from __future__ import annotations

import json
import pathlib
from typing import Any

BAR = 1_000_000
"""Env steps a second that are aimed at on a GPU."""


def draw(file: str, png: str) -> None:
    """Draws what `grid` wrote: rates by the number of environments, a line for each task and seeds.

    Args:
      file: lines of JSON.
      png: the picture to write.
    """
    from matplotlib import pyplot

    rows = [json.loads(line) for line in pathlib.Path(file).read_text().splitlines()]
    figure, axes = pyplot.subplots(figsize=(7.5, 5), layout="constrained")
    lines: dict[tuple[str, int, str], list[dict[str, Any]]] = {}
    for row in rows:
        if "env_steps_per_second" in row:
            lines.setdefault((row["env"], row["seeds"], row["what"]), []).append(row)
    colors: dict[tuple[str, int], Any] = {}
    for (env, seeds, what), cells in sorted(lines.items()):
        cells.sort(key=lambda cell: cell["num_envs"])
        of = f"{env}, {seeds} seed{'s' * (seeds > 1)}"
        x, y = ([cell[name] for cell in cells] for name in ("num_envs", "env_steps_per_second"))
        if what == "run":
            label, color = f"{of}: a run with metrics and checkpoints", colors.get((env, seeds))
            axes.plot(x, y, "*", color=color, mec="k", markersize=13, zorder=3, label=label)
        else:
            (line,) = axes.plot(x, y, "o-", label=of)
            colors[env, seeds] = line.get_color()
    axes.axhline(BAR, color="0.6", linestyle=":")
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_formatter("{x:,.0f}")
    axes.set_yscale("log")
    axes.set_xlabel("environments, of each seed")
    axes.set_ylabel("env steps a second, over all seeds")
    devices = sorted({row["device"] for row in rows if "device" in row})
    axes.set_title(f"PPO as one program on {', '.join(devices)}")
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8)
    figure.savefig(png, dpi=150)
