"""Splits the turns of a loop over an axis, where they are independent.

Within such a turn a device is alone: nothing in the loop is tiled over the axis. Loops and branches
inside may turn or decide differently on each device, so that nothing in them is tiled at all.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Sequence

from ..ir.program import Op, Program, Value
from .flops import OpFlops
from .graph import Graph
from .node import Node
from .propagate import assign_factor, fits
from .sharding import REPLICATED_DIM, Decisions

#: The share of a loop's work up to which it counts as unsplit.
_UNSPLIT = 0.5


def unsplit_loops(
    graph: Graph,
    state: Decisions,
    axis: str,
    start: int,
    rows: Container[Value],
    work: OpFlops,
) -> list[Node]:
    """Finds loops that a tactic left mostly unsplit, with turns that can be split instead.

    Args:
      graph: the program.
      state: the decisions, those of the tactic included.
      axis: the tactic's axis.
      start: the number of decisions before the tactic; those stay.
      rows: values that hold rows which the tactic tiles.
      work: the work of the program's ops.

    Returns:
      The nodes of loops that rows, or arrays tiled over their first dimension, come into. None is
      inside of another one.
    """
    found: list[Node] = []
    inside: set[Op] = set()
    earlier = (d for d in state.journal[:start] if d.axis == axis and d.what != REPLICATED_DIM)
    kept = {d.value for d in earlier} if graph.loops else set()
    for op, node in graph.loops.items():
        if op in inside or axis in state.factors.get(node, ()) or not fits(node, 0, axis, state):
            continue
        operands = zip(op.inputs, node.rule.operands, strict=True)
        scanned = [v for v, dims in operands if 0 in dims]
        reached = any(v in rows for v in op.inputs) or any(
            state.tiles.get(v, {}).get(axis) == 0 for v in scanned
        )
        if not reached or not kept.isdisjoint(values_inside(op.regions)):
            continue
        if not _alone(graph, state, op, axis):
            continue
        ops = [o for region in op.regions for o in region.walk()]
        nodes = [n for o in ops if (n := graph.of.get(o)) is not None]
        taken = [(n, state.factors[n][axis]) for n in nodes if axis in state.factors.get(n, ())]
        if sum(work.node(n, factor) for n, factor in taken) < _UNSPLIT * work.node(node, 0):
            found.append(node)
            inside.update(ops)
    return found


def split_turns(graph: Graph, state: Decisions, node: Node, axis: str) -> list[Value]:
    """Gives the turns of a loop an axis, if it divides them and nothing inside is tiled over it.

    Args:
      graph: the program.
      state: the decisions, which are extended.
      node: the node of a loop in `graph.loops`.
      axis: an axis that the node has not.

    Returns:
      The values around the loop that followed.
    """
    op = node.op
    assert op is not None
    held = [(v, a) for v in values_inside(op.regions) for a in (axis,)]
    # What a branch reads in another layout it would gather itself.
    apart = [v for o in _differing(op.regions) for v in (*o.inputs, *values_inside(o.regions))]
    held += [(v, a) for v in apart for a in state.mesh if a != axis]
    tiled = (state.tiles.get(v, {}).get(a, REPLICATED_DIM) != REPLICATED_DIM for v, a in held)
    if not fits(node, 0, axis, state) or any(tiled) or not _alone(graph, state, op, axis):
        return []
    followed = assign_factor(state, node, axis, 0)
    for value, other in held:
        if value.shape and value.data is None and other not in state.tiles.get(value, ()):
            state.set_value(value, other, REPLICATED_DIM, node)
    return followed


def _alone(graph: Graph, state: Decisions, op: Op, axis: str) -> bool:
    """True if no loop that is split already keeps the turns of another one from an axis.

    Of loops within each other one alone has the axis. What devices may take differently holds none.
    """
    for other, node in graph.loops.items():
        taken = state.factors.get(node, ())
        if not taken or other is op:
            continue
        regions = [r for o in _differing(other.regions) for r in o.regions]
        if axis in taken:
            regions += [*other.regions]
            if any(o is other for region in op.regions for o in region.walk()):
                return False
        if any(o is op for region in regions for o in region.walk()):
            return False
    return True


def values_inside(regions: Sequence[Program]) -> Iterator[Value]:
    """Every value that comes into regions, or is made in them or in those of their ops."""
    for region in regions:
        yield from region.inputs
        for op in region.ops:
            yield from op.outputs
            yield from values_inside(op.regions)


def _differing(regions: Sequence[Program]) -> Iterator[Op]:
    """The outermost loops and branches that devices may take differently."""
    for region in regions:
        for op in region.ops:
            if op.name in ("while", "cond"):
                yield op
            else:
                yield from _differing(op.regions)
