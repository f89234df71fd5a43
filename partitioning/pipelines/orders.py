"""Orders of cells on devices, made into steps: data edges and the orders are one graph."""

from __future__ import annotations

import collections
import itertools
from collections.abc import Mapping, Sequence

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
    before = predecessors(orders, edges)
    step_of: dict[PipelineCell, int] = {}
    for cell in in_order(before, orders):
        step_of[cell] = 1 + max((step_of[source] for source in before[cell]), default=-1)
    steps = 1 + max(step_of.values(), default=-1)
    rows: list[list[PipelineCell | None]] = [[None] * len(orders) for _ in range(steps)]
    for device, order in enumerate(orders):
        for cell in order:
            rows[step_of[cell]][device] = cell
    return PipelineTable(tuple(map(tuple, placement)), microbatches, tuple(map(tuple, rows)))


def predecessors(orders: Orders, edges: Edges) -> dict[PipelineCell, list[PipelineCell]]:
    """For every cell, those that it waits for: what it reads, and what its devices run before it.

    Raises:
      ValueError: a value is read that no device makes.
    """
    before: dict[PipelineCell, list[PipelineCell]] = {}
    for order in orders:
        for place, cell in enumerate(order):
            before.setdefault(cell, []).extend(order[max(place - 1, 0) : place])
    for cell, waits in before.items():
        for makers in cell.sources(edges):
            found = next((maker for maker in makers if maker in before), None)
            if found is None:
                wanted = " or ".join(map(str, makers))
                raise ValueError(f"{cell} reads {wanted}, which no device makes")
            waits.append(found)
    return before


def in_order(
    before: Mapping[PipelineCell, Sequence[PipelineCell]], orders: Orders
) -> list[PipelineCell]:
    """The cells, each after all that it waits for.

    Raises:
      ValueError: some wait for one another in a circle.
    """
    waiting = {cell: len(waits) for cell, waits in before.items()}
    after = collections.defaultdict(list)
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
        raise ValueError(_circle({c for c, count in waiting.items() if count}, before, orders))
    return ready


def _circle(
    stuck: set[PipelineCell],
    before: Mapping[PipelineCell, Sequence[PipelineCell]],
    orders: Orders,
) -> str:
    """Who waits for whom, around one circle of the cells that wait for ever."""
    path = [min(stuck, key=str)]
    while path.count(path[-1]) < 2:
        # Every cell that is stuck waits for another one that is.
        path.append(next(source for source in before[path[-1]] if source in stuck))
    path = path[path.index(path[-1]) :]
    waits = []
    for cell, source in itertools.pairwise(path):
        device = next(
            (d for d, order in enumerate(orders) if _runs_before(source, cell, order)), None
        )
        reason = "which it reads" if device is None else f"which device {device} runs before it"
        waits.append(f"{cell} waits for {source}, {reason}")
    return f"cells wait for one another in a circle: {'; '.join(waits)}"


def _runs_before(one: PipelineCell, other: PipelineCell, order: Sequence[PipelineCell]) -> bool:
    return any(pair == (one, other) for pair in itertools.pairwise(order))
