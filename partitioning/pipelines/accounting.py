"""Costs of a table: time, bubbles, live activations and messages."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence

from .edges import Edges, Work
from .orders import predecessors, sorted_cells, values_read
from .table import PipelineCell, PipelineTable

#: Seconds that the result of a cell takes from one device to another.
Link = Callable[[PipelineCell, int, int], float]


@dataclasses.dataclass(frozen=True)
class SegmentCost:
    """The cost of one micro-batch on one segment; units are the caller's.

    Attributes:
      forward, inputs, weights: time of the forward pass, and of the gradients of inputs and of
        weights.
      backward: time of both gradients at once; by default their sum.
      kept: memory from the forward pass until the last of the backward pass has run.
      working: memory besides, while a cell of the segment runs. A segment that is recomputed keeps
        little and works with much.
    """

    forward: float = 1.0
    inputs: float = 1.0
    weights: float = 1.0
    backward: float | None = None
    kept: float = 1.0
    working: float = 0.0

    def time(self, work: Work) -> float:
        """The time of one work."""
        if work == "backward" and self.backward is None:
            return self.inputs + self.weights
        return float(getattr(self, work))


@dataclasses.dataclass(frozen=True)
class Message:
    """A value that one device makes and another one reads.

    Attributes:
      value: the cell that makes it.
      source, target: the devices. If either segment is on several, they are -1: arrays are
        resharded over the axis.
    """

    value: PipelineCell
    source: int
    target: int


@dataclasses.dataclass(frozen=True)
class TableTiming:
    """The times at which a table would run.

    Attributes:
      total: from the first start to the last end.
      starts, ends: for every cell.
      busy: for each device, the time of its cells.
    """

    total: float
    starts: dict[PipelineCell, float]
    ends: dict[PipelineCell, float]
    busy: tuple[float, ...]

    @property
    def bubbles(self) -> tuple[float, ...]:
        """For each device its idle time as a share of the time of its cells."""
        return tuple(self.total / busy - 1 if busy else float("inf") for busy in self.busy)


def equal_costs(segments: int, **costs: float) -> tuple[SegmentCost, ...]:
    """The same cost for each segment."""
    return (SegmentCost(**costs),) * segments


def messages(table: PipelineTable, edges: Edges) -> tuple[Message, ...]:
    """The values that cross devices, once for each device that reads them, in order of steps."""
    found: dict[Message, None] = {}
    for cell, values in values_read(table.step_of, edges).items():
        for value in values:
            found.update(dict.fromkeys(_messages(table, value, cell)))
    return tuple(sorted(found, key=lambda message: table.step_of[message.value]))


def _messages(table: PipelineTable, value: PipelineCell, cell: PipelineCell) -> Iterator[Message]:
    sources, targets = table.placement[value.segment], table.placement[cell.segment]
    if len(sources) > 1 or len(targets) > 1:
        if value.segment != cell.segment:
            yield Message(value, -1, -1)
    elif sources != targets:
        yield Message(value, sources[0], targets[0])


def _by_value(sent: Sequence[Message]) -> dict[PipelineCell, list[Message]]:
    found: dict[PipelineCell, list[Message]] = {}
    for message in sent:
        found.setdefault(message.value, []).append(message)
    return found


def dependency_time(
    table: PipelineTable,
    edges: Edges,
    costs: Sequence[SegmentCost],
    link: Link | None = None,
) -> TableTiming:
    """The time if every device runs its cells in order, each as soon as its values are there.

    The longest path over data edges, orders and links. A link from one device to another carries
    one value at a time, and devices go on while it does.

    Args:
      costs: for each segment.
      link: the time of a value between devices; None if it takes none.
    """
    orders = table.orders()
    reads = values_read(table.step_of, edges)
    before = predecessors(orders, reads)
    starts: dict[PipelineCell, float] = {}
    ends: dict[PipelineCell, float] = {}
    arrivals: dict[Message, float] = {}
    free: dict[tuple[int, int], float] = {}
    sent = _by_value(messages(table, edges)) if link else {}
    for cell in sorted_cells(before, orders):
        ready = [ends[source] for source in before[cell]]
        if link:
            values = reads[cell]
            ready += [arrivals[one] for value in values for one in _messages(table, value, cell)]
        starts[cell] = max(ready, default=0.0)
        ends[cell] = starts[cell] + costs[cell.segment].time(cell.work)
        for message in sent.get(cell, ()):
            wire = message.source, message.target
            assert link is not None
            # Values of one device leave in its order, which is the order in which they come here.
            arrivals[message] = free[wire] = max(ends[cell], free.get(wire, 0.0)) + link(
                cell, *wire
            )
    busy = tuple(sum(costs[c.segment].time(c.work) for c in order) for order in orders)
    return TableTiming(max(ends.values(), default=0.0), starts, ends, busy)


def lockstep_time(
    table: PipelineTable,
    edges: Edges,
    costs: Sequence[SegmentCost],
    link: Link | None = None,
    joint: Callable[[Sequence[float]], float] = max,
    exchanges: Sequence[float] = (),
) -> TableTiming:
    """The time if all devices begin each step together, as where all take part in its exchange.

    A step takes as long as its longest cell, and then as long as the slowest link carries what the
    cells made.

    Args:
      costs: for each segment.
      link: the time of a value between devices; None if it takes none.
      joint: the time until all devices are done, from the time of each by itself.
      exchanges: for each step the time that all devices take besides.
    """
    starts: dict[PipelineCell, float] = {}
    ends: dict[PipelineCell, float] = {}
    sent = _by_value(messages(table, edges)) if link else {}
    now = 0.0
    busy = [0.0] * table.devices
    for step, row in enumerate(table.cells):
        wires: dict[tuple[int, int], float] = {}
        times = [costs[c.segment].time(c.work) if c is not None else 0.0 for c in row]
        end = now + joint(times)
        for device, cell in enumerate(row):
            if cell is not None:
                starts[cell] = now
                ends[cell] = min(now + times[device], end)
                busy[device] += ends[cell] - now
        for cell in dict.fromkeys(filter(None, row)):
            for message in sent.get(cell, ()):
                wire = message.source, message.target
                assert link is not None
                wires[wire] = wires.get(wire, 0.0) + link(cell, *wire)
        now = end + max(wires.values(), default=0.0) + (exchanges[step] if exchanges else 0.0)
    return TableTiming(now, starts, ends, tuple(busy))


def live(
    table: PipelineTable, edges: Edges, costs: Sequence[SegmentCost] | None = None
) -> tuple[tuple[float, ...], ...]:
    """Memory of activations by step and device.

    Args:
      costs: for each segment; by default each keeps 1 for every micro-batch, and what is counted
        are micro-batches.

    Returns:
      [steps][devices] what is kept while the step runs, and works in it.
    """
    costs = costs or equal_costs(table.segments)
    changes = [[0.0] * table.devices for _ in range(table.steps + 1)]
    working = [[0.0] * table.devices for _ in range(table.steps)]
    last: dict[tuple[int, int], int] = {}
    for cell, step in table.step_of.items():
        if cell.work != "forward":
            key = cell.segment, cell.microbatch
            last[key] = max(last.get(key, 0), step)
    for cell, step in table.step_of.items():
        for device in table.placement[cell.segment]:
            working[step][device] += costs[cell.segment].working
            if cell.work == "forward" and edges.has_backward(cell.segment):
                end = last.get((cell.segment, cell.microbatch), table.steps - 1)
                changes[step][device] += costs[cell.segment].kept
                changes[end + 1][device] -= costs[cell.segment].kept
    kept, found = [0.0] * table.devices, []
    for step in range(table.steps):
        kept = [a + b for a, b in zip(kept, changes[step], strict=True)]
        found.append(tuple(a + b for a, b in zip(kept, working[step], strict=True)))
    return tuple(found)


def peak_live(
    table: PipelineTable, edges: Edges, costs: Sequence[SegmentCost] | None = None
) -> tuple[float, ...]:
    """For each device the most memory of activations in any step; see `live`."""
    rows = live(table, edges, costs)
    return tuple(max(column) for column in zip(*rows, strict=True)) or (0.0,) * table.devices
