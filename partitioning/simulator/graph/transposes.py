"""Transposes that move behind elementwise operations, and from there behind reductions.

Where all that reads `g = transpose(x)` is elementwise, `g * g` and `g * scale`, the compiler
computes `transpose(x * x)` and `transpose(x * scale)` (XLA's reshape mover), and in the place of
`sum(transpose(y), 0)` over few rows `transpose(sum(y, 0))`. So it is with gradients for each
example, whose norms are taken before they are summed: both orders are in memory.
"""

from __future__ import annotations

import collections
import math

from ...rules import traits_of
from .nodes import CONSTANT, FUSIBLE, REDUCE_WINDOW, ArrayGraph, ArrayNode

Order = tuple[int, ...]


def move_transposes(graph: ArrayGraph) -> None:
    """Has elementwise nodes and reductions read arrays as they were before they were transposed.

    Args:
      graph: without users yet; what is left without readers is dropped as it is finished.
    """
    _merge(graph)
    _behind_elementwise(graph)
    _behind_reductions(graph)
    for index, node in enumerate(graph.nodes):
        node.index = index


def _merge(graph: ArrayGraph) -> None:
    """Has transposes of transposes read what was there before both."""
    for node in graph.nodes:
        if _is_transpose(node) and _is_transpose(node.operands[0]):
            (first,) = node.operands
            own, before = _permutation(node), _permutation(first)
            if own is not None:
                if before is None or len(before) != len(own) or first not in node.direct:
                    continue
                node.data = tuple(before[d] for d in own)
            node.operands = [first.operands[0]]


def _is_transpose(node: ArrayNode) -> bool:
    moves = traits_of(node.name).view == "order"
    return moves and node.kind == FUSIBLE and len(node.operands) == 1


def _behind_elementwise(graph: ArrayGraph) -> None:
    readers = collections.defaultdict(list)
    for node in graph.nodes:
        for operand in node.operands:
            readers[operand].append(node)
    results = set(graph.outputs)
    moved: dict[ArrayNode, Order] = {}
    for node in graph.nodes:
        order = _order(node, moved)
        if order is not None:
            moved[node] = order
    kept = [*moved]
    while kept:
        # Not where somebody else needs what is transposed.
        kept = [
            node
            for node, order in moved.items()
            if order != _order(node, moved)
            or any(
                operand in results or any(moved.get(reader) != order for reader in readers[operand])
                for operand in node.operands
                if not _is_repeated(operand, node)
            )
        ]
        for node in kept:
            del moved[node]
    nodes: list[ArrayNode] = []
    behind: dict[ArrayNode, ArrayNode] = {}
    for node in graph.nodes:
        nodes.append(node)
        if node not in moved:
            _read_instead(node, behind)
            continue
        before = [n for n in node.operands if n not in moved and _permutation(n) is not None]
        _read_instead(node, {n: n.operands[0] for n in before})
        if node in results or any(reader not in moved for reader in readers[node]):
            behind[node] = _transposed(node, moved[node])
            nodes.append(behind[node])
        node.shape = _inverted(node.shape, moved[node])
    graph.nodes = nodes
    graph.outputs = [behind.get(node, node) for node in graph.outputs]


def _order(node: ArrayNode, moved: dict[ArrayNode, Order]) -> Order | None:
    """The one order in which an elementwise node reads all but what is repeated; None: there is
    none."""
    if node.kind != FUSIBLE or not node.elementwise:
        return None
    found = {
        moved.get(operand) or _permutation(operand) if operand in node.direct else None
        for operand in node.operands
        if not _is_repeated(operand, node)
    }
    return found.pop() if len(found) == 1 else None


def _behind_reductions(graph: ArrayGraph) -> None:
    count = collections.Counter(n for node in graph.nodes for n in node.operands)
    count.update(graph.outputs)
    nodes: list[ArrayNode] = []
    behind: dict[ArrayNode, ArrayNode] = {}
    for node in graph.nodes:
        _read_instead(node, behind)
        nodes.append(node)
        order = _permutation(node.operands[0]) if _is_reduction(node) else None
        if order is None:
            continue
        assert node.op is not None
        source, axes = node.operands[0], node.op.params["axes"]
        shape = source.shape
        left = [order[d] for d in range(len(order)) if d not in axes]
        is_same = left == sorted(left)
        # A reduction over more rows reduces blocks of them first, and stays where it is.
        few = all(shape[axis] <= REDUCE_WINDOW for axis in axes)
        if not few or not (len(left) < 2 or count[source] == 1 or is_same):
            continue
        _read_instead(node, {source: source.operands[0]})
        if not is_same:
            left_order = tuple(sorted(left).index(d) for d in left)
            behind[node] = _transposed(node, left_order)
            nodes.append(behind[node])
            node.shape = _inverted(node.shape, left_order)
    graph.nodes = nodes
    graph.outputs = [behind.get(node, node) for node in graph.outputs]


def _is_reduction(node: ArrayNode) -> bool:
    """True of a reduction of one array as it lies, by an operation that the simulator knows."""
    if node.name != "reduce" or node.op is None or len(node.operands) != 1:
        return False
    known = traits_of(node.op.name).kernel == "reduce"
    return known and node.op.inputs[0].shape == node.operands[0].shape


def _is_repeated(node: ArrayNode, reader: ArrayNode) -> bool:
    """True of what is repeated over dimensions of its reader, and could be over any."""
    smaller = math.prod(node.shape) < math.prod(reader.shape)
    return smaller or node.kind == CONSTANT or traits_of(node.name).broadcasts


def _permutation(node: ArrayNode) -> Order | None:
    """The order in which a transpose has dimensions of its operand; None of anything else."""
    if not _is_transpose(node):
        return None
    if isinstance(node.data, tuple):
        return node.data
    op = node.op
    if op is None or traits_of(op.name).view != "order" or node.shape != op.outputs[0].shape:
        return None
    return tuple(op.params["permutation"])


def _transposed(node: ArrayNode, order: Order) -> ArrayNode:
    """A transpose behind a node that has its shape yet; it is not in the graph."""
    made = ArrayNode(-1, FUSIBLE, "transpose", node.nbytes, node.shape, [node], data=order)
    made.permutes = made.fuses = True
    return made


def _inverted(shape: tuple[int, ...], order: Order) -> tuple[int, ...]:
    """The shape of what has this one in another order of dimensions."""
    sizes = dict(zip(order, shape, strict=True))
    return tuple(sizes[d] for d in range(len(shape)))


def _read_instead(node: ArrayNode, others: dict[ArrayNode, ArrayNode]) -> None:
    """Has a node read other arrays in the place of some."""
    if others.keys().isdisjoint(node.operands):
        return
    node.operands = [others.get(n, n) for n in node.operands]
    node.direct = frozenset(others.get(n, n) for n in node.direct)
    node.reshaped = {others.get(n, n): shape for n, shape in node.reshaped.items()}
    if isinstance(node.data, list):
        node.data = [others.get(n, n) for n in node.data]
