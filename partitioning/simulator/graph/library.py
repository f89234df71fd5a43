"""Kernels that later CPU compilers leave to a library: reductions with what surrounds them.

Before it fuses anything itself, the compiler hands every large enough reduction to a library, with
the operations around it that the library knows and that nobody outside reads. What goes into such
a kernel from outside has to be in memory, however cheap it were to compute again.
"""

from __future__ import annotations

import math

from ...ir.program import Op
from ...rules import traits_of
from .nodes import ArrayGraph, ArrayNode

#: Fewer elements are not worth a library's call.
SMALLEST = 4096


def taken_by_library(op: Op) -> bool:
    """True if an op is a reduction of a size and a type that the library takes."""
    source = op.inputs[0]
    return (
        traits_of(op.name).kernel == "reduce"
        and str(source.dtype) in traits_of(op.name).library
        and source.size >= SMALLEST
        and bool(op.params["axes"])
    )


def leave_to_library(graph: ArrayGraph) -> None:
    """Gives every node that the library computes the node that its kernel writes.

    Args:
      graph: with users.
    """
    results = set(graph.outputs)
    for start in reversed(graph.nodes):
        if start.library is None and _starts(start):
            _grow(start, results)


def _grow(start: ArrayNode, results: set[ArrayNode]) -> None:
    """Around one reduction: up to what nobody else reads, down while there is one reader."""
    members = {start}
    root = start
    changed = True
    while changed:
        changed = False
        frontier = [n for member in members for n in member.operands if n not in members]
        while frontier:
            node = frontier.pop()
            if node in members or node in results or not _supported(node):
                continue
            if all(user in members for user in node.users):
                members.add(node)
                frontier += node.operands
                changed = True
        while root not in results and len(root.users) == 1 and _supported(root.users[0]):
            root = root.users[0]
            members.add(root)
            changed = True
    for node in members:
        node.library = root
        node.fuses = node.elementwise = False
    root.feeds = False


def _starts(node: ArrayNode) -> bool:
    return node.name == "reduce" and node.op is not None and taken_by_library(node.op)


def _supported(node: ArrayNode) -> bool:
    if node.library is not None:
        return False
    if traits_of(node.name).broadcasts or _starts(node):
        return True
    if node.op is None:
        return False
    if node.name == "dot":
        return _product(node)
    values = (*node.op.inputs, *node.op.outputs)
    traits = traits_of(node.name)
    if math.prod(node.shape) < math.prod(node.op.outputs[0].shape):
        return False  # only a part of what the op computes: the inverse of what it divides by
    return (
        traits.elementwise
        and all(str(v.dtype) in traits.library for v in values)
        and any(v.size >= SMALLEST for v in values)
    )


def _product(node: ArrayNode) -> bool:
    """A product of matrices, neither of them a vector, the left one as it lies in memory."""
    assert node.op is not None
    (lhs_contract, _), (lhs_batch, _) = node.op.params["dimension_numbers"]
    lhs, rhs = node.op.inputs
    inner = math.prod(lhs.shape[d] for d in lhs_contract)
    batch = math.prod(lhs.shape[d] for d in lhs_batch)
    rows, columns = lhs.size // max(inner * batch, 1), rhs.size // max(inner * batch, 1)
    last = max((d for d in range(lhs.ndim) if lhs.shape[d] > 1), default=0)
    return (
        str(lhs.dtype) in traits_of(node.op.name).library
        and min(rows, columns) > 1
        and max(rows, columns, inner) >= 8
        and (last in lhs_contract or not lhs_contract)
    )
