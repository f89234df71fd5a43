"""Blockers: the ops at which a tiling ends, why, and how much of the work after them is unsplit."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection

from ..ir.program import Op, Value
from ..rules import REPLICATED_FACTOR
from .flops import OpFlops
from .graph import Graph
from .node import Node
from .propagate import fits
from .sharding import REPLICATED_DIM, Decisions


@dataclasses.dataclass(frozen=True)
class Blocker:
    """An op that takes a tiled array, and gives nothing tiled.

    Attributes:
      op: the primitive's name.
      source: "file.py:12", or "".
      axis: the mesh axis.
      value: the tiled array; one of them, where a line of the source has several such ops.
      dim: its tiled dimension.
      reason: why no factor of the op goes on with it, or what becomes of the one that does.
      unsplit: the share of the program's operations that follow from it and are not split.
      values: all the tiled arrays.
    """

    op: str
    source: str
    axis: str
    value: Value = dataclasses.field(repr=False)
    dim: int
    reason: str
    unsplit: float
    values: frozenset[Value] = dataclasses.field(repr=False)

    def __str__(self) -> str:
        where = f" at {self.source}" if self.source else ""
        name = f"{self.value.path} " if self.value.path else ""
        return (
            f"{self.axis}: the tiling of {name}{self.value.type_text()}, dimension {self.dim}, "
            f"ends at {self.op}{where}: {self.reason}; {self.unsplit:.2f} of the work follows "
            "unsplit"
        )


def blockers(
    graph: Graph, state: Decisions, axis: str, work: OpFlops, reduced: bool = False
) -> list[Blocker]:
    """Every op, loop or branch at which a tiling over the axis ends, costliest first.

    Ops with several fitting factors are conflicts, and not among them.

    Args:
      graph: the program.
      state: the decisions.
      axis: the mesh axis.
      work: the work of the program's ops.
      reduced: True to include ops that are split, with results that are reduced and then whole.
    """
    turned = {op for op, node in graph.loops.items() if axis in state.factors.get(node, ())}
    users = _users(graph, turned)
    found: dict[tuple[str, str, str], Blocker] = {}

    def note(owner: Op, value: Value, dim: int, reason: str, results: tuple[Value, ...]) -> None:
        unsplit = _following(graph, state, axis, work, results, users)
        if not owner.regions and not _taken(graph, state, axis, owner):
            unsplit += work.of.get(owner, 0.0)
        blocker = Blocker(
            owner.name, owner.source, axis, value, dim, reason,
            unsplit / work.total if work.total else 0.0, frozenset([value]),
        )  # fmt: skip
        key = owner.name, owner.source, reason
        if (other := found.get(key)) is not None:
            both = other.values | blocker.values
            blocker = dataclasses.replace(max(other, blocker, key=_unsplit), values=both)
        found[key] = blocker

    def tiled(value: Value) -> int:
        return state.tiles.get(value, {}).get(axis, REPLICATED_DIM)

    for node in graph.nodes:
        taken = axis in state.factors.get(node, ())
        if node.owner is None or node.owner in turned or (taken and node.op is None):
            continue
        if taken and not reduced:
            continue
        count = len(node.values) if node.op is None else len(node.rule.operands)
        held = [
            (i, v, tiled(v))
            for i, v in enumerate(node.values[:count])
            if tiled(v) != REPLICATED_DIM
        ]
        if not held or any(tiled(v) != REPLICATED_DIM for v in node.values[count:]):
            continue
        factors = {node.dims[i][dim] for i, _, dim in held} - {REPLICATED_FACTOR}
        if len(factors) > 1 or (node.op is None and len(held) == len(node.values)):
            continue
        _, value, dim = held[0]
        reason = _reason(graph, node, dim, factors, axis, state)
        note(
            node.owner, value, dim, reason, node.values[1:] if node.op is None else node.op.outputs
        )
    for op, _ in graph.unruled:
        for value in op.inputs:
            if tiled(value) != REPLICATED_DIM and not any(
                tiled(v) != REPLICATED_DIM for v in op.outputs
            ):
                note(op, value, tiled(value), "it has no rule", op.outputs)
                break
    return sorted(found.values(), key=_unsplit, reverse=True)


def unreached(graph: Graph, state: Decisions, axis: str, work: OpFlops) -> str:
    """A line for the source line with most of the work that no tiling over the axis reaches."""
    turned = (op for op, node in graph.loops.items() if axis in state.factors.get(node, ()))
    inside = {o for op in turned for region in op.regions for o in region.walk()}
    shares: dict[tuple[str, str], float] = {}
    for op, flops in work.of.items():
        if op not in inside and not _taken(graph, state, axis, op):
            place = op.name, op.source
            shares[place] = shares.get(place, 0.0) + flops / work.total
    (name, source), share = max(shares.items(), key=lambda item: item[1])
    where = f" at {source}" if source else ""
    return f"{axis}: no tiling reaches {name}{where}, {share:.2f} of the work"


def _taken(graph: Graph, state: Decisions, axis: str, op: Op) -> bool:
    """True if an op is split over the axis."""
    node = graph.of.get(op)
    return node is not None and axis in state.factors.get(node, ())


def tiled_from(graph: Graph, state: Decisions, axis: str, value: Value) -> set[Value]:
    """The values that the tiling of one value goes on to, itself included."""
    found, stack = {value}, [value]
    while stack:
        for node in graph.touching.get(stack.pop(), ()):
            if axis not in state.factors.get(node, ()):
                continue
            for other in node.values if node.op is None else node.op.outputs:
                if (
                    other not in found
                    and state.tiles.get(other, {}).get(axis, REPLICATED_DIM) != REPLICATED_DIM
                ):
                    found.add(other)
                    stack.append(other)
    return found


def _unsplit(blocker: Blocker) -> float:
    return blocker.unsplit


def _reason(
    graph: Graph, node: Node, dim: int, factors: set[int], axis: str, state: Decisions
) -> str:
    size, owner = state.mesh[axis], node.owner
    if node.op is not None and axis in state.factors.get(node, ()):
        result = node.values[-1].type_text()
        return f"its result {result} is reduced over {axis}={size}, and whole afterwards"
    if not factors:
        if node.op is not None or owner is None:
            return f"it needs dimension {dim} replicated"
        loop = graph.loops.get(owner)
        if loop is None:
            why = "its turns are not independent"
        elif not fits(loop, 0, axis, state):
            why = f"its {owner.trips} turns do not divide by {axis}={size}"
        else:
            why = "what is in it is tiled otherwise"
        return f"the loop runs over dimension {dim}, and {why}"
    (factor,) = factors
    if fits(node, factor, axis, state):
        return f"dimension {dim} is replicated there"
    return f"{node.rule.sizes[factor]} does not divide by {axis}={size}"


def _users(graph: Graph, turned: Collection[Op]) -> dict[Value, list[Op]]:
    """The ops that read a value, but those inside of loops with turns that are split."""
    users: dict[Value, list[Op]] = {}
    inside = {o for op in turned for region in op.regions for o in region.walk()}
    for op in graph.program.walk():
        if not op.regions and op not in inside:
            for value in op.inputs:
                users.setdefault(value, []).append(op)
    return users


def _following(
    graph: Graph,
    state: Decisions,
    axis: str,
    work: OpFlops,
    results: tuple[Value, ...],
    users: dict[Value, list[Op]],
) -> float:
    """The operations of ops that follow from values and take no factor on the axis."""
    stack, seen, done = list(results), set(results), set()
    total = 0.0
    while stack:
        value = stack.pop()
        if state.tiles.get(value, {}).get(axis, REPLICATED_DIM) != REPLICATED_DIM:
            continue
        reached: list[Value] = []
        for op in users.get(value, ()):
            node = graph.of.get(op)
            if op in done or (node is not None and axis in state.factors.get(node, ())):
                continue
            done.add(op)
            total += work.of.get(op, 0.0)
            reached += op.outputs
        for node in graph.touching.get(value, ()):
            if node.op is None:
                reached += node.values[node.values.index(value) + 1 :]
        for other in reached:
            if other not in seen:
                seen.add(other)
                stack.append(other)
    return total
