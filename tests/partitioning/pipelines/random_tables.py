"""Random tables that can run: any order that the data edges allow, on any placement."""

from __future__ import annotations

import random

from troupe.partitioning import pipelines as pp


def random_table(
    chooser: random.Random, devices: int, edges: pp.Edges, microbatches: int
) -> pp.PipelineTable:
    """A table of segments on random devices, some on all, and of backward passes in random parts.

    Args:
      edges: of at least one segment; each device has one if there are enough of them.
    """
    segments = [*range(edges.segments)]
    chooser.shuffle(segments)
    placement: list[tuple[int, ...]] = [()] * edges.segments
    for place, segment in enumerate(segments):
        one = place if place < devices else chooser.randrange(devices)
        whole = place >= devices and chooser.random() < 0.2
        placement[segment] = tuple(range(devices)) if whole else (one,)
    waiting = []
    for microbatch in range(microbatches):
        for segment, work in edges.order:
            split = work == "backward" and chooser.random() < 0.4
            works = ("inputs", "weights") if split else (work,)
            waiting += [pp.PipelineCell(segment, microbatch, one) for one in works]
    orders: list[list[pp.PipelineCell]] = [[] for _ in range(devices)]
    done: set[pp.PipelineCell] = set()
    while waiting:
        ready = [c for c in waiting if all(done.intersection(m) for m in c.sources(edges))]
        cell = chooser.choice(ready)
        waiting.remove(cell)
        done.add(cell)
        for device in placement[cell.segment]:
            orders[device].append(cell)
    return pp.lay_out(orders, placement, microbatches, edges)
