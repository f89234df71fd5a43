"""Propagation: tiled values decide the factors of the ops around them, to a fixpoint."""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Iterable, Mapping

from ..ir.program import Value
from ..rules.factor import REPLICATED_FACTOR
from .graph import Graph
from .node import Node
from .sharding import REPLICATED_DIM, Decisions


@dataclasses.dataclass(frozen=True)
class Conflict:
    """An op on which more than one factor fits an axis; it was left alone.

    Attributes:
      op: the primitive's name.
      source: "file.py:12", or "".
      axis: the mesh axis.
      candidates: for each, which operand or result asks for which dimension.
      factors: the candidates' factors, in the same order.
      node: the node itself.
    """

    op: str
    source: str
    axis: str
    candidates: tuple[str, ...]
    factors: tuple[int, ...] = dataclasses.field(repr=False, compare=False)
    node: Node = dataclasses.field(repr=False, compare=False)

    @classmethod
    def of(cls, node: Node, axis: str, candidates: Mapping[int, str]) -> Conflict:
        """The conflict of a node, from its candidate factors to who asks for each."""
        owner = node.owner
        name, source = ("state", "") if owner is None else (owner.name, owner.source)
        return cls(name, source, axis, tuple(candidates.values()), tuple(candidates), node)

    def __str__(self) -> str:
        where = f" at {self.source}" if self.source else ""
        return f"{self.op}{where}, axis {self.axis!r}: {' against '.join(self.candidates)}"


def propagate(graph: Graph, state: Decisions, seeds: Iterable[tuple[Value, str]]) -> list[Conflict]:
    """Decides every node that has exactly one fitting factor, starting from values that changed.

    A node may stand for many ops that would each follow their own neighbours. It takes the factor
    that most of its values ask for, once the queue has gone round often enough to pass through it.

    Args:
      graph: the program.
      state: decisions so far; extended in place.
      seeds: (value, axis) pairs that were just decided.

    Returns:
      The conflicts met, in program order of meeting; those still open at the end.
    """
    touching, delays = graph.touching, graph.delays
    tiles, factors = state.tiles, state.factors
    # Nodes and their axes in two queues: pairs would be made and hashed a million times.
    queue: deque[Node] = deque()
    axes: deque[str] = deque()
    queued: dict[str, set[Node]] = {axis: set() for axis in state.mesh}
    for value, axis in seeds:
        for node in touching.get(value, ()):
            if node not in queued[axis]:
                queued[axis].add(node)
                queue.append(node)
                axes.append(axis)
    open_conflicts: dict[tuple[Node, str], Conflict] = {}
    waits: dict[tuple[Node, str], int] = {}
    while queue:
        node, axis = queue.popleft(), axes.popleft()
        waiting = queued[axis]
        waiting.discard(node)
        assigned = factors.get(node)
        if assigned is not None and axis in assigned:
            continue
        if node in delays and (left := waits.get((node, axis), delays[node])) > 0:
            waits[node, axis] = left - 1
            queue.append(node)
            axes.append(axis)
            waiting.add(node)
            continue
        factor = REPLICATED_FACTOR
        clash = False
        for value, dims in node.tileable:
            known = tiles.get(value)
            if known is None:
                continue
            dim = known.get(axis, REPLICATED_DIM)
            if dim == REPLICATED_DIM:
                continue
            candidate = dims[dim]
            if candidate in (REPLICATED_FACTOR, factor):
                continue
            if factor != REPLICATED_FACTOR:
                clash = True
                break
            factor = candidate
        if clash and node in delays:
            factor = _most_asked(node, axis, state)
        elif clash:
            open_conflicts[node, axis] = _conflict(node, axis, state)
            continue
        if factor == REPLICATED_FACTOR or not fits(node, factor, axis, state):
            continue
        for value in assign_factor(state, node, axis, factor):
            for neighbour in touching.get(value, ()):
                # What is assigned already would be passed over.
                if neighbour not in waiting and axis not in factors.get(neighbour, ()):
                    waiting.add(neighbour)
                    queue.append(neighbour)
                    axes.append(axis)
    return list(open_conflicts.values())


def assign_factor(state: Decisions, node: Node, axis: str, factor: int) -> list[Value]:
    """Gives the node a factor; the values that carry it follow, where they are open and divide.

    Returns:
      The values that followed.
    """
    state.set_node(node, axis, factor)
    followed, tiles = [], state.tiles
    for value, dims in node.tileable:
        if factor not in dims or axis in tiles.get(value, ()):
            continue
        dim = dims.index(factor)
        if state.divides(value, dim, axis):
            state.set_value(value, axis, dim, node)
            followed.append(value)
    return followed


def fits(node: Node, factor: int, axis: str, state: Decisions) -> bool:
    """True if the axis divides the factor on top of the axes that tile it already."""
    parts = state.mesh[axis]
    if others := state.factors.get(node):
        for other, taken in others.items():
            if taken == factor:
                parts *= state.mesh[other]
    size = node.rule.sizes[factor]
    return size > 0 and size % parts == 0


def _most_asked(node: Node, axis: str, state: Decisions) -> int:
    """The factor that most values of a node ask for; of several the first that is asked for."""
    asked: dict[int, int] = {}
    for value, dims in zip(node.values, node.dims, strict=True):
        dim = state.tiles.get(value, {}).get(axis, REPLICATED_DIM)
        if dim != REPLICATED_DIM and dims[dim] != REPLICATED_FACTOR:
            asked[dims[dim]] = asked.get(dims[dim], 0) + 1
    return max(asked, key=lambda factor: asked[factor])


def _conflict(node: Node, axis: str, state: Decisions) -> Conflict:
    candidates: dict[int, str] = {}
    operands = len(node.rule.operands)
    for position, (value, dims) in enumerate(zip(node.values, node.dims, strict=True)):
        dim = state.tiles.get(value, {}).get(axis, REPLICATED_DIM)
        if dim != REPLICATED_DIM and dims[dim] != REPLICATED_FACTOR and dims[dim] not in candidates:
            kind, at = (
                ("operand", position) if position < operands else ("result", position - operands)
            )
            label = f" ({value.path})" if value.path else ""
            candidates[dims[dim]] = f"dimension {dim} of {kind} {at} {value.type_text()}{label}"
    return Conflict.of(node, axis, candidates)
