"""Tables in words: what each device does and keeps, and what a cell or an idle device waits for."""

from __future__ import annotations

from collections.abc import Sequence

from .accounting import SegmentCost, dependency_time, equal_costs, messages, peak_live
from .edges import Edges
from .table import PipelineCell, PipelineTable, columns


def explain(table: PipelineTable, edges: Edges, costs: Sequence[SegmentCost] | None = None) -> str:
    """A row for each device, and the messages between them.

    Args:
      costs: for each segment; by default forward passes and each gradient take 1 and keep 1.
    """
    costs = costs or equal_costs(table.segments)
    timing = dependency_time(table, edges, costs)
    kept = peak_live(table, edges, costs)
    rows = [["device", "segments", "cells", "idle steps", "bubble", "live at most"]]
    for device, order in enumerate(table.orders()):
        own = [str(s) for s, places in enumerate(table.placement) if device in places]
        idle = str(table.steps - len(order))
        bubble = f"{timing.bubbles[device]:.1%}" if order else "-"
        rows.append(
            [str(device), ",".join(own), str(len(order)), idle, bubble, f"{kept[device]:g}"]
        )
    sent = messages(table, edges)
    whole = sum(message.source < 0 for message in sent)
    beyond = sum(abs(one.source - one.target) not in (0, 1, table.devices - 1) for one in sent)
    return "\n".join(
        [
            f"{table.segments} segments on {table.devices} devices, {table.microbatches} "
            f"micro-batches in {table.steps} steps",
            columns(rows),
            f"{len(sent) - whole} messages between devices, {beyond} of them beyond neighbours; "
            f"{whole} over the whole axis",
        ]
    )


def explain_step(table: PipelineTable, edges: Edges, step: int, device: int) -> str:
    """Explains a step of a device: why it runs no earlier, or, if it is idle, for what it waits.

    Raises:
      ValueError: the table has no such step or device.
    """
    if not (0 <= step < table.steps and 0 <= device < table.devices):
        raise ValueError(
            f"no step {step} on device {device}: there are {table.steps} steps and "
            f"{table.devices} devices"
        )
    column = [row[device] for row in table.cells]
    cell = column[step]
    if cell is not None:
        reasons = _reads(table, edges, cell)
        before = next((c for c in reversed(column[:step]) if c is not None), None)
        reasons += f"; the device runs {before} before it" if before is not None else ""
        return f"{cell} runs at step {step} on device {device}: {reasons}"
    later = next((c for c in column[step:] if c is not None), None)
    if later is None:
        return f"device {device} is idle at step {step}: all its cells have run"
    return (
        f"device {device} is idle at step {step}: its next cell is {later} of step "
        f"{table.step_of[later]}; {_reads(table, edges, later)}"
    )


def _reads(table: PipelineTable, edges: Edges, cell: PipelineCell) -> str:
    """The values that a cell reads, and when they are made."""
    values = (table.source(cell, makers) for makers in cell.sources(edges))
    made = [f"{value} of step {table.step_of[value]}" for value in values if value is not None]
    return f"it reads {' and '.join(made)}" if made else "it reads nothing"
