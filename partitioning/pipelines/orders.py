"""Orders of cells on devices, made into steps: data edges and the orders are one graph."""

from __future__ import annotations

import graphlib
import itertools
from collections.abc import Collection, Mapping, Sequence

from .edges import Edges
from .table import PipelineCell, PipelineTable

#: For each device its cells, in the order in which it runs them.
Orders = Sequence[Sequence[PipelineCell]]


def lay_out(
    orders: Orders, placement: Sequence[Sequence[int]], microbatches: int, edges: Edges
) -> PipelineTable:
    """The table in which every device runs its cells in order, each as early as it can.

    Args:
      orders: of a segment on several devices, its cells stand in the order of each of them.
      placement: the devices of each segment.

    Raises:
      ValueError: a value is read that no device makes, or cells wait for one another in a circle;
        the message tells who waits for whom.
    """
    before = predecessors(orders, values_read(dict.fromkeys(itertools.chain(*orders)), edges))
    step_of: dict[PipelineCell, int] = {}
    for cell in sorted_cells(before, orders):
        step_of[cell] = 1 + max((step_of[source] for source in before[cell]), default=-1)
    steps = 1 + max(step_of.values(), default=-1)
    rows: list[list[PipelineCell | None]] = [[None] * len(orders) for _ in range(steps)]
    for device, order in enumerate(orders):
        for cell in order:
            rows[step_of[cell]][device] = cell
    return PipelineTable(tuple(map(tuple, placement)), microbatches, tuple(map(tuple, rows)))


def values_read(
    cells: Collection[PipelineCell], edges: Edges
) -> dict[PipelineCell, list[PipelineCell]]:
    """For every cell, those that make what it reads.

    Raises:
      ValueError: a value is read that no cell makes.
    """
    found: dict[PipelineCell, list[PipelineCell]] = {}
    for cell in cells:
        values = found[cell] = []
        for makers in cell.sources(edges):
            value = next((maker for maker in makers if maker in cells), None)
            if value is None:
                wanted = " or ".join(map(str, makers))
                raise ValueError(f"{cell} reads {wanted}, which no device makes")
            values.append(value)
    return found


def predecessors(
    orders: Orders, reads: Mapping[PipelineCell, Sequence[PipelineCell]]
) -> dict[PipelineCell, list[PipelineCell]]:
    """For every cell, those that it waits for: what it reads, and what its devices run before."""
    before = {cell: [*values] for cell, values in reads.items()}
    for order in orders:
        for one, other in itertools.pairwise(order):
            before[other].append(one)
    return before


def sorted_cells(
    before: Mapping[PipelineCell, Sequence[PipelineCell]], orders: Orders
) -> list[PipelineCell]:
    """The cells, each after all that it waits for.

    Raises:
      ValueError: some wait for one another in a circle; the message tells who waits for whom.
    """
    waiting = {cell: len(waits) for cell, waits in before.items()}
    after: dict[PipelineCell, list[PipelineCell]] = {cell: [] for cell in before}
    for cell, waits in before.items():
        for source in waits:
            after[source].append(cell)
    ready = [cell for cell, count in waiting.items() if not count]
    for cell in ready:
        for later in after[cell]:
            waiting[later] -= 1
            if not waiting[later]:
                ready.append(later)
    if len(ready) < len(before):
        raise ValueError(_circle(before, orders))
    return ready


def _circle(before: Mapping[PipelineCell, Sequence[PipelineCell]], orders: Orders) -> str:
    """Says who waits for whom, around one circle."""
    try:
        graphlib.TopologicalSorter(before).prepare()
    except graphlib.CycleError as error:
        waits = []
        for source, cell in itertools.pairwise(error.args[1]):
            devices = (d for d, order in enumerate(orders) if _adjacent(source, cell, order))
            device = next(devices, None)
            reason = "which it reads" if device is None else f"which device {device} runs before it"
            waits.append(f"{cell} waits for {source}, {reason}")
        return f"cells wait for one another in a circle: {'; '.join(reversed(waits))}"
    raise AssertionError("no circle")


def _adjacent(one: PipelineCell, other: PipelineCell, order: Sequence[PipelineCell]) -> bool:
    return (one, other) in itertools.pairwise(order)
