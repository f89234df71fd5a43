"""Views that move behind elementwise operations, so that these work in the shape of what they read.

A product has its free dimensions flattened, and what reads it sees a view. Where all that an
elementwise operation reads is such a view, or uniform, the compiler computes it flat.
"""

from __future__ import annotations

from .nodes import CONSTANT, FUSIBLE, ArrayGraph, ArrayNode, uniform


def move_reshapes(graph: ArrayGraph) -> None:
    """Gives elementwise nodes the shape in which all that they read lies in memory.

    Args:
      graph: with users.
    """
    moved: dict[ArrayNode, tuple[int, ...]] = {}
    for node in graph.nodes:
        shape = _flat(node, moved)
        if shape is not None:
            moved[node] = shape
    results = set(graph.outputs)
    changed = True
    while changed:
        # A view that somebody else needs stays where it is.
        kept = [
            node
            for node, shape in moved.items()
            if any(
                source in results or any(moved.get(user) != shape for user in source.users)
                for source in node.reshaped
            )
            or any(n not in moved and not _trivial(n) for n in node.operands if n in node.direct)
        ]
        for node in kept:
            del moved[node]
        changed = bool(kept)
    for node, shape in moved.items():
        for user in node.users:
            if user not in moved and node in user.direct:
                user.reshaped[node] = node.shape
                user.direct -= {node}
        node.direct, node.reshaped, node.shape = frozenset(node.operands), {}, shape


def _trivial(node: ArrayNode) -> bool:
    """True of what has any shape for the asking."""
    return node.kind == CONSTANT or uniform(node)


def _flat(node: ArrayNode, moved: dict[ArrayNode, tuple[int, ...]]) -> tuple[int, ...] | None:
    """The one shape of all that an elementwise node reads; None where there is none."""
    if node.kind != FUSIBLE or not node.elementwise:
        return None
    shapes = set()
    for operand in node.operands:
        if operand in node.reshaped:
            if operand in node.direct or operand.shape == ():
                return None
            shapes.add(operand.shape)
        elif operand in moved:
            shapes.add(moved[operand])
        elif not _trivial(operand):
            return None
    return shapes.pop() if len(shapes) == 1 else None
