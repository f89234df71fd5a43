"""Ops that are kernels of their own: random bits, scatters, collectives, and the rest."""

from __future__ import annotations

from ...ir.program import Op
from ...rules import traits_of
from .. import costs
from .builder import GraphBuilder
from .nodes import ELEMENT, FUSIBLE, NEWER, OPAQUE, ArrayNode
from .products import ordered


def random(builder: GraphBuilder, op: Op, operands: list[ArrayNode]) -> ArrayNode:
    """Threefry: two arrays of counters go through a loop, in place; then they are mixed."""
    out = op.outputs[0]
    half = 4 * out.size
    words = [builder.node(FUSIBLE, "iota_add", half, out.shape, operands, op) for _ in range(2)]
    rounds = builder.node(OPAQUE, op.name, 0, (), words, op)
    rounds.flops, rounds.transcendentals = costs.op_flops(op)
    results = []
    for position in range(2):
        element = builder.node(ELEMENT, op.name, half, out.shape, [rounds], op)
        element.data, element.in_place = position, position
        results.append(element)
    node = builder.node(FUSIBLE, "xor", out.nbytes, out.shape, results, op)
    node.elementwise, node.unary = True, False
    node.direct = frozenset(results)
    return node


def select_and_scatter(builder: GraphBuilder, op: Op, operands: list[ArrayNode]) -> ArrayNode:
    """The gradient of a maximum over windows: find where each maximum was, scatter there."""
    source, operand = op.inputs
    out = op.outputs[0]
    places = []
    for dimension in range(operand.ndim):
        key = ("place", operand.shape, dimension)
        if key not in builder.known:
            builder.known[key] = builder.node(FUSIBLE, "iota", 4 * operand.size, operand.shape)
        places.append(builder.known[key])
    window = builder.node(OPAQUE, "reduce_window_max", 0, (), [operands[1], *places], op)
    found = []
    for position in range(operand.ndim + 1):
        size = source.nbytes if position == 0 else 4 * source.size
        element = builder.node(ELEMENT, "reduce_window_max", size, source.shape, [window], op)
        element.data = position
        found.append(element)
    shape = (source.size, operand.ndim)
    index = builder.node(
        FUSIBLE, "concatenate", 4 * source.size * operand.ndim, shape, found[1:], op
    )
    updates = ordered(builder, op, source, operands[0], tuple(range(source.ndim)))
    node = builder.node(
        OPAQUE, "scatter-add", out.nbytes, out.shape, [builder.zeros(out), index, updates], op
    )
    node.in_place = 0
    node.flops, node.transcendentals = costs.op_flops(op)
    return node


def opaque(builder: GraphBuilder, op: Op, operands: list[ArrayNode]) -> ArrayNode:
    if builder.kind == "cpu" and op.name in ("all_gather", "reduce_scatter", "all_to_all"):
        return laid_out(builder, op, operands)
    sizes = [v.nbytes for v in op.outputs]
    traits = traits_of(op.name)
    by_columns = builder.kind == "cpu" and traits.overwrites >= 0 and len(sizes) > 1
    if by_columns:
        at, value = traits.overwrites, op.inputs[traits.overwrites]
        order = (*range(value.ndim - 2), value.ndim - 1, value.ndim - 2)
        operands = [*operands]
        operands[at] = ordered(builder, op, value, operands[at], order)
    if len(sizes) == 1:
        node = builder.node(OPAQUE, op.name, sizes[0], op.outputs[0].shape, operands, op)
        builder.env[op.outputs[0]] = node
    else:
        node = builder.node(OPAQUE, op.name, 0, (), operands, op)
        node.data = [builder.element(node, i, v) for i, v in enumerate(op.outputs)]
        if by_columns:
            node.data[0] = checked(builder, op, node.data[0])
    node.flops, node.transcendentals = costs.op_flops(op)
    if builder.kind == "cpu" and not NEWER and traits.flops == "reduction":
        # Of elements with their places, which earlier compilers do not cut into blocks.
        node.fuses = op.inputs[0].ndim - 1 in op.params["axes"]
    if traits.traffic == "scatter":
        node.in_place = 0
    elif builder.kind == "cpu" and traits.overwrites >= 0 and len(sizes) == 1:
        node.in_place = node.operands.index(operands[traits.overwrites])
    return node


def checked(builder: GraphBuilder, op: Op, matrices: ArrayNode) -> ArrayNode:
    """Has a routine write its matrices, column by column, over its operand.

    Returns:
      What is read of them: the same row by row, or NaN where the routine failed.
    """
    matrices.in_place = traits_of(op.name).overwrites
    value = op.outputs[0]
    node = builder.node(FUSIBLE, "select_n", value.nbytes, value.shape, [matrices], op)
    builder.env[value] = node
    return node


def laid_out(builder: GraphBuilder, op: Op, operands: list[ArrayNode]) -> ArrayNode:
    """Collectives that need the split dimension outermost: copies around them where it is not.

    They are made where every dimension before it has size 1 as well, and nothing moves. An
    all_to_all always cuts its operand into pieces and puts those it gets together.
    """
    (source,), (out,) = op.inputs, op.outputs
    copied = op.name == "all_to_all" or op.params["dim"] > 0
    operand = operands[0]
    if copied:
        key = ("laid out", operand.index, source.shape, op.params.get("dim"))
        if key not in builder.known:
            builder.known[key] = builder.node(
                FUSIBLE, "transpose", source.nbytes, source.shape, [operand], op
            )
        operand = builder.known[key]
    node = builder.node(OPAQUE, op.name, out.nbytes, out.shape, [operand], op)
    node.flops, node.transcendentals = costs.op_flops(op)
    if copied:
        node = builder.node(FUSIBLE, "transpose", out.nbytes, out.shape, [node], op)
    builder.env[out] = node
    return node
