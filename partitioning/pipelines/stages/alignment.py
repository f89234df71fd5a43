"""Orders the forward pass so that a layer's parameters are computed with in one place.

A step may go through one network several times, or through an online and a target network. In the
order of the program these are chains one behind the other, and a layer would be needed in several
segments. Here each op stands with the others that read the same parameters, their moments or their
targets, as far as what it reads is made before.
"""

from __future__ import annotations

import graphlib
import heapq
import itertools
from collections.abc import Collection, Iterable, Mapping

from ...ir.program import Op, Value
from .dependence import Dependences
from .owners import Groups

#: What has a place of its own in the order: the group of some parameters, or a single op.
Node = Value | Op


def aligned(dependence: Dependences, heavy: Collection[Op]) -> tuple[list[Op], dict[Op, int]]:
    """Orders the forward pass.

    Args:
      dependence: of a step.
      heavy: the products among its ops.

    Returns:
      The ops, each behind those that it reads, and for each the number of its place; products with
      the same parameters have the same one.
    """
    nodes = _nodes(dependence, heavy)
    while True:
        before = _edges(dependence, nodes)
        try:
            place = _sorted(before)
            break
        except graphlib.CycleError as error:
            # Such as an embedding that is the head too: its uses stand where they are.
            counts = {node: sum(one is node for one in nodes.values()) for node in error.args[1]}
            loose = max(counts, key=counts.__getitem__)
            nodes = {
                op: op if node is loose else node
                for op, node in nodes.items()
                if node is not loose or op in heavy
            }
    level: dict[Op, int] = {}
    made: dict[Value, int] = {}
    for op in dependence.forward:
        read = max((made[v] for v in op.inputs if v in made), default=0)
        level[op] = place[nodes[op]] if op in nodes else read
        made.update(dict.fromkeys(op.outputs, level[op]))
    return sorted(dependence.forward, key=level.__getitem__), level


def _nodes(dependence: Dependences, heavy: Collection[Op]) -> dict[Op, Node]:
    """The node of each op that reads parameters or is a product."""
    groups = Groups(dependence)
    parameters = {v for v in dependence.inputs if v in dependence.trained and v.ndim}
    found: dict[Op, list[Value]] = {}
    joined: dict[Value, Value] = {}

    def root(value: Value) -> Value:
        while value in joined:
            value = joined[value]
        return value

    for op in dependence.forward:
        read = [*op.inputs, *(v for o in dependence.closure(op.inputs) for v in o.inputs)]
        own = [groups.root(v) for v in dict.fromkeys(read) if v in parameters]
        found[op] = own
        for one, other in itertools.pairwise(own):
            if root(one) is not root(other):
                joined[root(other)] = root(one)
    nodes: dict[Op, Node] = {}
    for op, own in found.items():
        if own:
            nodes[op] = root(own[0])
        elif op in heavy:
            nodes[op] = op
    return nodes


def _edges(dependence: Dependences, nodes: Mapping[Op, Node]) -> dict[Node, dict[Node, None]]:
    """For each node, in the order of the program, those whose results it reads."""
    behind: dict[Value, dict[Node, None]] = {}
    before: dict[Node, dict[Node, None]] = {}
    for op in dependence.forward:
        read = {node: None for v in op.inputs for node in behind.get(v, ())}
        node = nodes.get(op)
        if node is not None:
            known = before.setdefault(node, {})
            known.update((one, None) for one in read if one is not node)
            read = {node: None}
        behind.update(dict.fromkeys(op.outputs, read))
    return before


def _sorted(before: Mapping[Node, Iterable[Node]]) -> dict[Node, int]:
    """A number for each node, larger than those of the nodes before it; else as they come.

    Raises:
      graphlib.CycleError: nodes read one another.
    """
    sorter = graphlib.TopologicalSorter(before)
    sorter.prepare()
    first = {node: number for number, node in enumerate(before)}
    order = [*before]
    ready: list[int] = []
    found: dict[Node, int] = {}
    while sorter.is_active():
        for node in sorter.get_ready():
            heapq.heappush(ready, first[node])
        node = order[heapq.heappop(ready)]
        found[node] = len(found)
        sorter.done(node)
    return found
