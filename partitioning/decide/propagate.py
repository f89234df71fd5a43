"""Propagation: tiled values decide the factors of the ops around them, to a fixpoint."""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Iterable, Mapping

from ..ir.program import Value
from ..rules.factor import REPLICATED_FACTOR
from .graph import Graph, Node
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
    queue: deque[tuple[Node, str]] = deque()
    queued: set[tuple[Node, str]] = set()
    for value, axis in seeds:
        for node in touching.get(value, ()):
            if (node, axis) not in queued:
                queued.add((node, axis))
                queue.append((node, axis))
    open_conflicts: dict[tuple[Node, str], Conflict] = {}
    waits: dict[tuple[Node, str], int] = {}
    while queue:
        item = queue.popleft()
        queued.discard(item)
        node, axis = item
        assigned = factors.get(node)
        if assigned is not None and axis in assigned:
            continue
        if node in delays and (left := waits.get(item, delays[node])) > 0:
            waits[item] = left - 1
            queue.append(item)
            queued.add(item)
            continue
        factor = REPLICATED_FACTOR
        clash = False
        for value, dims in zip(node.values, node.dims, strict=True):
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
            open_conflicts[item] = _conflict(node, axis, state)
            continue
        if factor == REPLICATED_FACTOR or not fits(node, factor, axis, state):
            continue
        for value in assign_factor(state, node, axis, factor):
            for neighbour in touching.get(value, ()):
                # What is assigned already would be passed over.
                if axis in factors.get(neighbour, ()):
                    continue
                item = neighbour, axis
                if item not in queued:
                    queued.add(item)
                    queue.append(item)
    return list(open_conflicts.values())


def assign_factor(state: Decisions, node: Node, axis: str, factor: int) -> list[Value]:
    """Gives the node a factor; the values that carry it follow, where they are open and divide.

    Returns:
      The values that followed.
    """
    state.set_node(node, axis, factor)
    followed = []
    for value, dims in zip(node.values, node.dims, strict=True):
        if factor not in dims or value.data is not None or axis in state.tiles.get(value, ()):
            continue
        dim = dims.index(factor)
        if state.divides(value, dim, axis):
            state.set_value(value, axis, dim, node)
            followed.append(value)
    return followed


def fits(node: Node, factor: int, axis: str, state: Decisions) -> bool:
    """True if the axis divides the factor on top of the axes that tile it already."""
    parts = state.mesh[axis]
    for other, taken in state.factors.get(node, {}).items():
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
