"""Matrix products and convolutions, and the order and precision they want operands in."""

from __future__ import annotations

import math
from typing import Any

from ...ir.program import Op, Value
from .. import costs
from .builder import GraphBuilder
from .nodes import FUSIBLE, NEWER, OPAQUE, ArrayNode

_HALF = frozenset(["bfloat16", "float16"])

# An earlier compiler for CPUs leaves a product with a vector of so many bytes to a library.
_LONG_VECTOR = 16 << 10


def dot(builder: GraphBuilder, op: Op, operands: list[ArrayNode]) -> ArrayNode:
    (lhs_contract, rhs_contract), (lhs_batch, rhs_batch) = op.params["dimension_numbers"]
    out = op.outputs[0]
    if builder.kind == "cpu" and math.prod(op.inputs[0].shape[d] for d in lhs_contract) == 1:
        return outer(builder, op, operands)
    sides = []
    folded = False
    canonical = (
        len(lhs_contract) == 1
        and tuple(lhs_batch) == tuple(rhs_batch) == tuple(range(len(lhs_batch)))
        and all(v.ndim <= len(lhs_batch) + 2 for v in op.inputs)
    )
    widened = builder.kind == "cpu" and not (
        _in_bfloat16(op) and (not canonical or lhs_contract[0] == op.inputs[0].ndim - 1)
    )
    parts = (lhs_batch, lhs_contract, False), (rhs_batch, rhs_contract, True)
    for value, operand, (batch, contract, contract_first) in zip(
        op.inputs, operands, parts, strict=True
    ):
        if not canonical:
            operand = reordered(builder, op, value, operand, batch, contract, contract_first)
        elif batch and operand in builder.columns:
            operand = by_rows(builder, op, operand)
        elif _swapped(operand, len(batch)):
            (operand,) = operand.operands  # the product reads it transposed
            folded = True
        if widened and str(value.dtype) in _HALF:
            operand = convert(builder, op, operand, 2)
        elif not NEWER and builder.kind == "cpu" and _narrower(value, out):
            operand = convert(builder, op, operand, out.dtype.itemsize / value.dtype.itemsize)
        sides.append(operand)
    half = widened and str(out.dtype) in _HALF
    shapes = flat_shapes(op)
    shape = shapes[2] if builder.kind == "cpu" else out.shape
    node = builder.node(OPAQUE, "dot", out.nbytes * (2 if half else 1), shape, sides, op)
    for side, flat in zip(sides, shapes[:2], strict=True):
        if side.shape not in (flat, flat[::-1]) and builder.kind == "cpu":
            node.reshaped[side] = flat
    node.late = folded
    if builder.kind == "cpu" and not NEWER and not lhs_batch:
        _take_matrix_in(node, op, sides, shapes)
    node.flops, node.transcendentals = costs.op_flops(op)
    return convert(builder, op, node, 0.5) if half else node


def _take_matrix_in(
    node: ArrayNode, op: Op, sides: list[ArrayNode], shapes: tuple[tuple[int, ...], ...]
) -> None:
    """Lets earlier CPU compilers compute a matrix within its product with a short vector."""
    for at, shape in enumerate(shapes[:2]):
        if shape[at] == 1 and op.inputs[at].nbytes < _LONG_VECTOR:
            node.fuses = True
            node.whole = frozenset([sides[at]])
            return


def _narrower(value: Value, out: Value) -> bool:
    """True of integers that earlier CPU compilers multiply in the wider type of the result."""
    narrower = value.dtype.itemsize < out.dtype.itemsize
    return narrower and value.dtype.kind in "iu" and out.dtype.kind in "iu"


def _in_bfloat16(op: Op) -> bool:
    """True if a library for CPUs multiplies two matrices, or batches of them, in bfloat16.

    It reads the left one row by row; one that is to be brought into order first, it can.
    """
    contract, batch = op.params["dimension_numbers"]
    free = [v.ndim - len(c) - len(b) for v, c, b in zip(op.inputs, contract, batch, strict=True)]
    return NEWER and min(free) > 0 and all(str(v.dtype) == "bfloat16" for v in op.inputs)


def flat_shapes(op: Op) -> tuple[tuple[int, ...], ...]:
    """The shapes of both operands and the result with one free and one contracted dimension."""
    (contract, batch) = op.params["dimension_numbers"]
    shapes = []
    for value, contracted, outside in zip(op.inputs, contract, batch, strict=True):
        outer = tuple(value.shape[d] for d in outside)
        inner = math.prod(value.shape[d] for d in contracted)
        free = value.size // max(inner * math.prod(outer), 1)
        shapes.append((outer, free, inner))
    (outer, rows, inner), (_, columns, _) = shapes
    sizes = (rows, inner), (inner, columns), (rows, columns)
    return tuple((*outer, *(n for n in pair)) for pair in sizes)


def _swapped(operand: ArrayNode, batch: int) -> bool:
    """True of matrices, or a batch of them, that are the transposed of others in memory."""
    order = operand.op.params.get("permutation") if operand.op is not None else None
    outside = tuple(range(batch))
    swapped = order is not None and tuple(order) == (*outside, batch + 1, batch)
    return swapped and operand.permutes and not operand.reshaped


def by_rows(builder: GraphBuilder, op: Op, operand: ArrayNode) -> ArrayNode:
    """Matrices that lay column by column, copied."""
    key = ("by rows", operand.index)
    if key not in builder.known:
        builder.known[key] = builder.node(
            FUSIBLE, "transpose", operand.nbytes, operand.shape, [operand], op
        )
        builder.known[key].permutes = True
    return builder.known[key]


def outer(builder: GraphBuilder, op: Op, operands: list[ArrayNode]) -> ArrayNode:
    """A product that sums nothing: the compiler multiplies, in whatever kernel needs it."""
    out = op.outputs[0]
    node = builder.node(FUSIBLE, "mul", out.nbytes, out.shape, operands, op)
    node.flops, node.transcendentals = float(out.size), 0.0
    node.unary = sum(v.size == out.size for v in op.inputs) < 2
    return node


def convolution(builder: GraphBuilder, op: Op, operands: list[ArrayNode]) -> ArrayNode:
    """Operands and result in the only order that the CPU's convolution knows, features last."""
    dims = op.params["dimension_numbers"]
    out = op.outputs[0]
    image_order = (dims.lhs_spec[0], *dims.lhs_spec[2:], dims.lhs_spec[1])
    window_order = (*dims.rhs_spec[2:], dims.rhs_spec[1], dims.rhs_spec[0])
    image = ordered(builder, op, op.inputs[0], operands[0], image_order)
    window = ordered(builder, op, op.inputs[1], operands[1], window_order)
    order = (dims.out_spec[0], *dims.out_spec[2:], dims.out_spec[1])
    shape = tuple(out.shape[d] for d in order)
    node = builder.node(OPAQUE, op.name, out.nbytes, shape, [image, window], op)
    node.flops, node.transcendentals = costs.op_flops(op)
    moved = [d for d in order if out.shape[d] > 1]
    if moved != sorted(moved):
        node = builder.node(FUSIBLE, "transpose", out.nbytes, out.shape, [node], op)
    return node


def ordered(
    builder: GraphBuilder, op: Op, value: Value, operand: ArrayNode, order: tuple[int, ...]
) -> ArrayNode:
    """The operand with its dimensions in another order: a copy, unless nothing really moves."""
    moved = [d for d in order if value.shape[d] > 1]
    if moved == sorted(moved):
        return operand
    key = ("ordered", operand.index, order, value.shape)
    if key not in builder.known:
        shape = tuple(value.shape[d] for d in order)
        builder.known[key] = builder.node(FUSIBLE, "transpose", value.nbytes, shape, [operand], op)
    return builder.known[key]


def convert(builder: GraphBuilder, op: Op, operand: ArrayNode, factor: float) -> ArrayNode:
    """The operand in another precision: `factor` times its bytes."""
    key = ("convert", operand.index, factor)
    if key not in builder.known:
        node = builder.node(
            FUSIBLE,
            "convert_element_type",
            int(operand.nbytes * factor),
            operand.shape,
            [operand],
            op,
        )
        node.elementwise = True
        node.direct = frozenset([operand])
        node.flops = float(math.prod(operand.shape))
        builder.known[key] = node
    return builder.known[key]


def reordered(
    builder: GraphBuilder,
    op: Op,
    value: Value,
    operand: ArrayNode,
    batch: Any,
    contract: Any,
    contract_first: bool,
) -> ArrayNode:
    """The operand with batch, then free, then contracting dimensions (contracting first on the
    right).
    """
    free = [d for d in range(value.ndim) if d not in batch and d not in contract]
    middle = [*contract, *free] if contract_first else [*free, *contract]
    order = [d for d in (*batch, *middle) if value.shape[d] > 1]
    if order == sorted(order):
        return operand
    swapped = [*free, *contract] if contract_first else [*contract, *free]
    simple = len(free) == 1 and len(contract) == 1
    other = [d for d in (*batch, *swapped) if value.shape[d] > 1]
    if simple and other == sorted(other):
        return operand  # the product reads it transposed
    key = ("transposed", operand.index, tuple(order), value.shape)
    if key not in builder.known:
        shape = tuple(value.shape[d] for d in (*batch, *middle))
        node = builder.node(FUSIBLE, "transpose", operand.nbytes, shape, [operand], op)
        builder.known[key] = node
    return builder.known[key]
