"""Orders the forward pass so that a layer's parameters are computed with in one place.

A step may go through one network several times, or through an online and a target network. In the
order of the program these are chains one behind the other, and a layer would be needed in several
segments. Here each op stands with the others that read the same parameters, their moments or their
targets, as far as what it reads is made before.
"""

from __future__ import annotations

import graphlib
import itertools
from collections.abc import Collection, Iterator, Mapping, Sequence

from ...ir.disjoint_sets import DisjointSets
from ...ir.ordering import stable_order
from ...ir.program import Op, Value
from .chains import ForwardChains
from .dependence import Dependences
from .owners import Groups

#: What has a place of its own in the order: the group of some parameters, or a single op.
Node = Value | Op


def aligned(
    dependence: Dependences, heavy: Collection[Op], chains: ForwardChains | None = None
) -> tuple[list[Op], dict[Op, int]]:
    """Orders the forward pass.

    Args:
      dependence: of a step.
      heavy: the products among its ops.
      chains: its forward passes, of which products at the same depth have the same place.

    Returns:
      The ops, each behind those that it reads, and for each the number of its place; products with
      the same parameters have the same one.
    """
    nodes = _nodes(dependence, heavy, chains)
    while True:
        before = _edges(dependence, nodes)
        try:
            place = {node: number for number, node in enumerate(stable_order(before))}
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


def _nodes(
    dependence: Dependences, heavy: Collection[Op], chains: ForwardChains | None
) -> dict[Op, Node]:
    """The node of each op that reads parameters or is a product."""
    groups = Groups(dependence)
    parameters = {v for v in dependence.inputs if v in dependence.trained and v.ndim}
    found: dict[Op, list[Value]] = {}
    joined: DisjointSets[Value] = DisjointSets()
    for op in dependence.forward:
        read = [*op.inputs, *(v for o in dependence.closure(op.inputs) for v in o.inputs)]
        own = [groups.root(v) for v in dict.fromkeys(read) if v in parameters]
        found[op] = own
        for one, other in itertools.pairwise(own):
            joined.join(one, other)
    for op, like in () if chains is None else _of_like_depth(chains, heavy, found):
        joined.join(found[op][0], found[like][0])
    nodes: dict[Op, Node] = {}
    for op, own in found.items():
        if own:
            nodes[op] = joined.root(own[0])
        elif op in heavy:
            nodes[op] = op
    return nodes


def _of_like_depth(
    chains: ForwardChains, heavy: Collection[Op], parameters: Mapping[Op, Sequence[Value]]
) -> Iterator[tuple[Op, Op]]:
    """Products of each chain with those of the last one at the same depth.

    A chain that reads parameters of the last one, or such as follow them, stands with it anyway.
    """
    every = [op for op in chains.products(chains.count - 1, heavy) if parameters[op]]
    known = {v for op in every for v in parameters[op]}
    # A later phase computes with the same network again.
    last = [*{frozenset(parameters[op]): op for op in reversed(every)}.values()][::-1]
    for chain in range(chains.count - 1):
        own = [op for op in chains.products(chain, heavy) if parameters[op]]
        if last and known.isdisjoint(v for op in own for v in parameters[op]):
            for i, op in enumerate(own):
                yield op, last[i * len(last) // len(own)]


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
