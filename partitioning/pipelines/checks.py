"""Checks of a table before anything is compiled; each fault is a sentence that names its cells."""

from __future__ import annotations

import collections
from collections.abc import Iterator, Sequence

from .accounting import SegmentCost, live, messages
from .edges import WORKS, Edges, Work, chain, text
from .table import PipelineCell, PipelineTable

#: How many faults a message lists.
_LISTED = 5
_WORKS = ", ".join(WORKS)
#: The cells that together make a whole backward pass.
_BACKWARD: tuple[frozenset[Work], ...] = (frozenset({"backward"}), frozenset({"inputs", "weights"}))


def check_table(
    table: PipelineTable,
    edges: Edges | None = None,
    *,
    devices: int | None = None,
    hops: int | None = None,
    costs: Sequence[SegmentCost] | None = None,
    limits: Sequence[float] | None = None,
) -> None:
    """Raises unless a table can run and makes the whole step.

    Args:
      edges: by default those of one chain of all segments.
      devices: of the mesh axis that it is meant for.
      hops: the most places along the ring of devices that a value may travel; 1 for neighbours.
      costs: for each segment, what it keeps and works with; by default one for each micro-batch.
      limits: for each device, the most memory of activations in any step.

    Raises:
      ValueError: with a sentence for each fault.
    """
    edges = edges or chain(table.segments)
    found = faults(table, edges, devices=devices, hops=hops, costs=costs, limits=limits)
    if found:
        more = [f"and {len(found) - _LISTED} more faults"] if len(found) > _LISTED else []
        raise ValueError("\n".join([*found[:_LISTED], *more]))


def faults(
    table: PipelineTable,
    edges: Edges,
    *,
    devices: int | None = None,
    hops: int | None = None,
    costs: Sequence[SegmentCost] | None = None,
    limits: Sequence[float] | None = None,
) -> list[str]:
    """The faults of a table, a sentence each; the arguments are those of `check_table`.

    What is asked later is asked only of a table without earlier faults: places of cells, then whole
    micro-batches, then the order of steps, then links and memory.
    """
    if devices is not None and table.devices != devices:
        return [f"the table is of {table.devices} devices, the axis has {devices}"]
    if table.segments != edges.segments:
        return [f"the table places {table.segments} segments, the edges have {edges.segments}"]
    for stage in (_misplaced(table, edges), _incomplete(table, edges), _early(table, edges)):
        if found := [*stage]:
            return found
    far = [] if hops is None else [*_far(table, edges, hops)]
    return far + ([] if limits is None else [*_over(table, edges, costs, limits)])


def _misplaced(table: PipelineTable, edges: Edges) -> Iterator[str]:
    """Cells of nothing there is, and cells on devices that are not their segment's."""
    for step, row in enumerate(table.cells):
        for device, cell in enumerate(row):
            if cell is None:
                continue
            where = f"{cell} at step {step} on device {device}"
            if cell.work not in WORKS:
                yield f"step {step} on device {device} does {cell.work!r}; works are {_WORKS}"
            elif not 0 <= cell.segment < table.segments:
                yield f"{where} is of segment {cell.segment}; there are {table.segments}"
            elif not 0 <= cell.microbatch < table.microbatches:
                yield f"{where} is of micro-batch {cell.microbatch}; there are {table.microbatches}"
            elif cell.task not in edges.sources:
                yield f"{where}: there is no {text(cell.task)}"
            elif device not in table.placement[cell.segment]:
                places = " and ".join(map(str, table.placement[cell.segment]))
                yield f"{where} belongs on device {places}, where segment {cell.segment} is placed"


def _incomplete(table: PipelineTable, edges: Edges) -> Iterator[str]:
    """Cells that run twice, or in part of their devices, or not at all."""
    places: dict[PipelineCell, list[tuple[int, int]]] = collections.defaultdict(list)
    for step, row in enumerate(table.cells):
        for device, cell in enumerate(row):
            if cell is not None:
                places[cell].append((step, device))
    for cell, found in places.items():
        steps = sorted({step for step, _ in found})
        if len(steps) > 1 and len(table.placement[cell.segment]) > 1:
            yield (
                f"{cell} runs at steps {steps[0]} and {steps[1]}; the devices of segment "
                f"{cell.segment} run it in one step"
            )
        elif len(steps) > 1:
            yield f"{cell} runs twice, at steps {steps[0]} and {steps[1]}"
        else:
            for device in set(table.placement[cell.segment]) - {device for _, device in found}:
                yield (
                    f"{cell} at step {steps[0]} does not run on device {device}, one of those of "
                    f"segment {cell.segment}"
                )
    for microbatch in range(table.microbatches):
        for segment, work in edges.order:
            there = {
                c for w in _works(work) if (c := PipelineCell(segment, microbatch, w)) in places
            }
            wanted = [frozenset({work})] if work == "forward" else [*_BACKWARD]
            if {cell.work for cell in there} in wanted:
                continue
            if not there:
                yield f"{PipelineCell(segment, microbatch, work)} is in no step"
            elif len(there) > 1:
                cells = " and ".join(sorted(map(str, there)))
                yield f"{cells} are both there; a backward pass is whole, or inputs and weights"
            else:
                (cell,) = there
                other: Work = "weights" if cell.work == "inputs" else "inputs"
                yield f"{PipelineCell(segment, microbatch, other)} is in no step, though {cell} is"


def _works(work: Work) -> tuple[Work, ...]:
    return ("forward",) if work == "forward" else ("backward", "inputs", "weights")


def _early(table: PipelineTable, edges: Edges) -> Iterator[str]:
    """Values that are read before they are made, or while they are."""
    for cell, step in table.step_of.items():
        for makers in cell.sources(edges):
            value = table.source(cell, makers)
            assert value is not None
            made = table.step_of[value]
            if made >= step:
                when = "the same step" if made == step else f"step {made}"
                yield f"{cell} at step {step} reads {value}, which is made at {when}"


def _far(table: PipelineTable, edges: Edges, hops: int) -> Iterator[str]:
    """Values that travel further along the ring of devices than they may."""
    for message in messages(table, edges):
        if message.source < 0:
            continue
        apart = abs(message.source - message.target)
        apart = min(apart, table.devices - apart)
        if apart > hops:
            yield (
                f"{message.value} is made on device {message.source} and read on device "
                f"{message.target}, {apart} places along the ring; at most {hops} are allowed"
            )


def _over(
    table: PipelineTable,
    edges: Edges,
    costs: Sequence[SegmentCost] | None,
    limits: Sequence[float],
) -> Iterator[str]:
    """Devices that hold more than they may, each at the first step at which it does."""
    if len(limits) != table.devices:
        yield f"there are {len(limits)} limits of memory for {table.devices} devices"
        return
    rows = live(table, edges, costs)
    for device, limit in enumerate(limits):
        over = (step for step, row in enumerate(rows) if row[device] > limit)
        for step in [*over][:1]:
            yield (
                f"device {device} holds {rows[step][device]:g} at step {step}, with "
                f"{table.cells[step][device] or 'nothing to run'}; its limit is {limit:g}"
            )
