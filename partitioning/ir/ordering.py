"""Topological order that keeps what it may of an order that there is."""

from __future__ import annotations

import graphlib
import heapq
from collections.abc import Hashable, Iterable, Mapping
from typing import TypeVar

T = TypeVar("T", bound=Hashable)


def stable_order(before: Mapping[T, Iterable[T]]) -> list[T]:
    """Orders nodes behind those before them; else as they come.

    Args:
      before: for each node those that come before it, all of which are nodes.

    Raises:
      graphlib.CycleError: nodes come before one another.
    """
    sorter = graphlib.TopologicalSorter(before)
    sorter.prepare()
    place = {node: number for number, node in enumerate(before)}
    nodes = [*before]
    ready: list[int] = []
    found: list[T] = []
    while sorter.is_active():
        for node in sorter.get_ready():
            heapq.heappush(ready, place[node])
        found.append(nodes[heapq.heappop(ready)])
        sorter.done(found[-1])
    return found
