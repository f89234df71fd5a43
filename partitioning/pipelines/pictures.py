"""Pictures of tables: devices over time, a colour for each kind of work."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from ..simulator.pictures import blank, write
from .accounting import Link, SegmentCost, dependency_time, equal_costs
from .edges import Edges, Work
from .table import PipelineTable

_COLOURS: dict[Work, str] = {
    "forward": "#9db4c0",
    "backward": "#ee6c4d",
    "inputs": "#e07a5f",
    "weights": "#f2cc8f",
}
_NAMES: dict[Work, str] = {
    "forward": "forward",
    "backward": "backward",
    "inputs": "gradient of inputs",
    "weights": "gradient of weights",
}


def save_table(
    table: PipelineTable,
    edges: Edges,
    path: str | os.PathLike[str],
    costs: Sequence[SegmentCost] | None = None,
    link: Link | None = None,
) -> None:
    """Draws a table as it would run into a file; the ending of its name gives the format.

    Raises:
      ImportError: matplotlib is not installed.
      ValueError: if the file cannot be written, or its ending is that of no picture.
    """
    costs = costs or equal_costs(table.segments)
    timing = dependency_time(table, edges, costs, link)
    figure = blank(min(4 + 0.3 * table.steps, 30), 1.2 + 0.45 * table.devices, layout="constrained")
    draw_table(figure.subplots(), table, edges, costs, link)
    figure.suptitle(
        f"{table.microbatches} micro-batches, bubble {max(timing.bubbles):.1%} at most",
        fontsize=10,
    )
    write(figure, path)


def draw_table(
    axes: Any,
    table: PipelineTable,
    edges: Edges,
    costs: Sequence[SegmentCost],
    link: Link | None = None,
) -> None:
    """A bar for each cell, as long as it takes, labelled with its micro-batch.

    With several segments a device, later segments are drawn darker.
    """
    timing = dependency_time(table, edges, costs, link)
    for device, order in enumerate(table.orders()):
        own = sorted({cell.segment for cell in order})
        for cell in order:
            width = timing.ends[cell] - timing.starts[cell]
            axes.barh(
                device, width, left=timing.starts[cell], height=0.9, color=_COLOURS[cell.work],
                alpha=(own.index(cell.segment) + 1) / len(own), edgecolor="white", linewidth=0.6,
            )  # fmt: skip
            axes.text(
                timing.starts[cell] + width / 2, device, str(cell.microbatch),
                ha="center", va="center", fontsize=7,
            )  # fmt: skip
    for work in dict.fromkeys(cell.work for cell in table.step_of):
        axes.barh(0, 0, color=_COLOURS[work], label=_NAMES[work])
    axes.set_yticks(range(table.devices), [f"device {d}" for d in range(table.devices)])
    axes.invert_yaxis()
    axes.set(xlabel="time", xlim=(0, timing.total or 1))
    axes.legend(loc="upper left", bbox_to_anchor=(1, 1), fontsize=8)
