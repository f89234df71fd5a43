"""Tables made from tables: segments on all devices between the stages, and parts that share one."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from ..edges import Edges, Task, Work
from ..orders import lay_out
from ..table import PipelineCell, PipelineTable


def interlaced(table: PipelineTable, edges: Edges, whole: Collection[int]) -> PipelineTable:
    """A table with segments on all devices as steps of their own, such as an embedding and a head.

    The other segments keep their steps in order. A step of all devices comes right before the first
    one that reads it, or right after the last one that it reads; it leaves no device idle.

    Args:
      table: the schedule of the segments on single devices, numbered without those on all.
      edges: of all segments.
      whole: the numbers, in these edges, of the segments on all devices.
    """
    count = edges.segments
    missing = [segment for segment in whole if not 0 <= segment < count]
    if missing:
        raise ValueError(
            f"segment {missing[0]} runs on all devices, but there are {count} segments"
        )
    if count != table.segments + len(set(whole)):
        raise ValueError(
            f"of {count} segments {len(set(whole))} run on all devices, which leaves "
            f"{count - len(set(whole))} to the table; it schedules {table.segments}"
        )
    staged = [segment for segment in range(count) if segment not in whole]
    rows = [[c and c._replace(segment=staged[c.segment]) for c in row] for row in table.cells]
    step_of = {cell: step for step, row in enumerate(rows) for cell in row if cell is not None}
    # Whole steps by the step that they come before; in the order of their edges, which is kept.
    inserted: list[list[PipelineCell]] = [[] for _ in range(table.steps + 1)]
    everywhere = tuple(range(table.devices))
    for microbatch in range(table.microbatches):
        for task, step in _whole_steps(edges, set(whole), step_of, microbatch):
            inserted[step].append(PipelineCell(task[0], microbatch, task[1]))
    cells: list[tuple[PipelineCell | None, ...]] = []
    for step in range(table.steps + 1):
        cells += [(cell,) * table.devices for cell in inserted[step]]
        cells += map(tuple, rows[step : step + 1])
    places = iter(table.placement)
    placement = tuple(everywhere if s in whole else next(places) for s in range(count))
    return PipelineTable(placement, table.microbatches, tuple(cells))


def _whole_steps(
    edges: Edges,
    whole: Collection[int],
    step_of: Mapping[PipelineCell, int],
    microbatch: int,
) -> list[tuple[Task, int]]:
    """For one micro-batch, the tasks on all devices in order, and the step each comes before."""

    def step(task: Task) -> int:
        works: tuple[Work, ...] = ("forward",) if task[1] == "forward" else ("backward", "inputs")
        cells = (PipelineCell(task[0], microbatch, work) for work in works)
        return next(step_of[cell] for cell in cells if cell in step_of)

    found: dict[Task, int] = {}
    for task in reversed(edges.order):
        readers = [r for r in edges.readers[task] if r in found or r[0] not in whole]
        if task[0] in whole and readers:
            found[task] = min(found[r] if r in found else step(r) for r in readers)
    # Results that nobody reads are made early, so that what they are made from can go.
    for task in edges.order:
        if task[0] in whole and task not in found:
            ends = [found[s] if s in found else step(s) + 1 for s in edges.sources[task]]
            found[task] = max(ends, default=0)
    return [(task, found[task]) for task in edges.order if task in found]


def co_sharded(
    table: PipelineTable, edges: Edges, parts: Mapping[int, int]
) -> tuple[PipelineTable, Edges]:
    """A table with segments cut into parts that run in turn on the segment's own devices.

    A part reads all that the segment read, and who read the segment reads all of its parts. If
    each part is recomputed, a device holds the activations of one part at a time; costs say so by
    `working` in place of `kept` (co-shard of SuperScaler, https://arxiv.org/abs/2301.08984).

    Args:
      parts: segment to how many parts; others stay whole. Numbers move up by the parts before.

    Returns:
      The table, and the edges of its segments.
    """
    for segment, count in parts.items():
        if not 0 <= segment < table.segments or count < 1:
            raise ValueError(
                f"segment {segment} of {table.segments} cannot have {count} parts; name segments "
                "that there are, and at least one part"
            )
    groups, start = [], 0
    for segment in range(table.segments):
        groups.append(range(start, start + parts.get(segment, 1)))
        start = groups[-1].stop
    reads = []
    for (segment, work), sources in edges.reads:
        for part in groups[segment]:
            found = [
                (other, kind)
                for source, kind in sources
                for other in ([part] if source == segment else groups[source])
            ]
            reads.append(((part, work), tuple(found)))
    orders = [
        [cell._replace(segment=part) for cell in order for part in groups[cell.segment]]
        for order in table.orders()
    ]
    placement = [
        devices for group, devices in zip(groups, table.placement, strict=True) for _ in group
    ]
    after = Edges(tuple(reads))
    return lay_out(orders, placement, table.microbatches, after), after
