"""Ops that may be computed inside another kernel: elementwise, moves, reductions; and views."""

from __future__ import annotations

import math

from ...ir.program import Op, Value
from .. import costs
from .builder import GraphBuilder
from .library import taken_by_library
from .nodes import CONSTANT, FUSIBLE, NEWER, OPAQUE, ArrayNode, uniform

REDUCE_WINDOW = 32  # a reduction over a longer dimension first reduces blocks of this length

FUSIBLE_MOVES = frozenset(
    [
        "slice",
        "dynamic_slice",
        "dynamic_update_slice",
        "pad",
        "concatenate",
        "rev",
        "iota",
        "select_and_gather_add",
        "clamp",
    ]
)
_EXPENSIVE = costs.TRANSCENDENTAL | {"div", "rem", "gather", "all_slice_offset"}
_IN_PLACE = frozenset(["dynamic_update_slice"])


def is_view(builder: GraphBuilder, op: Op, operands: list[ArrayNode]) -> bool:
    name, out, source = op.name, op.outputs[0], op.inputs[0] if op.inputs else None
    if source is None or not op.outputs or len(op.outputs) > 1:
        return False
    if name == "broadcast_in_dim" or name == "slice" or name == "pad" or name.startswith("reduce_"):
        return out.size == source.size and out.dtype == source.dtype and name != "reduce_precision"
    if name == "concatenate":
        return len(op.inputs) == 1
    if name == "convert_element_type":
        return out.dtype == source.dtype
    if name == "transpose":
        permutation = op.params["permutation"]
        moved = [d for d in permutation if source.shape[d] > 1]
        if moved == sorted(moved):
            return True
        # The transpose of a plain matrix product is the product of the swapped operands.
        swapped = operands[0].name == "dot" and out.ndim == 2 and len(operands[0].shape) == 2
        operands[0].late |= swapped
        return swapped
    return False


def fusible(builder: GraphBuilder, op: Op, operands: list[ArrayNode]) -> ArrayNode:
    name, out = op.name, op.outputs[0]
    if name in ("slice", "dynamic_slice", "all_slice") and uniform(operands[0]):
        name, operands = (
            "broadcast_in_dim",
            operands[0].operands,
        )  # a part of it is uniform as well
    elementwise = name in costs.ELEMENTWISE or name in costs.TRANSCENDENTAL or name == "clamp"
    if elementwise and builder.kind == "cpu" and NEWER:
        operands = [
            _spread(builder, value, operand, out) if value.size < out.size else operand
            for value, operand in zip(op.inputs, operands, strict=True)
        ]
    node = builder.node(FUSIBLE, name, out.nbytes, out.shape, operands, op)
    node.flops, node.transcendentals = costs.op_flops(op)
    floating = getattr(out.dtype, "kind", "f") in "fcV"
    node.expensive = name in _EXPENSIVE and (floating or name not in ("div", "rem"))
    node.elementwise = elementwise
    node.reuses = name in ("broadcast_in_dim", "gather")
    node.in_place = 0 if name in _IN_PLACE else -1
    full = 0
    direct = []
    # A part of a uniform array reads what that array read: fewer operands than the op has.
    for value, operand in zip(op.inputs[: len(operands)], operands, strict=True):
        if value.shape == operand.shape:
            direct.append(operand)
        repeated = elementwise and value.size < out.size  # as a broadcast is
        if repeated or operand.name in ("broadcast_in_dim", "iota"):
            continue
        if operand.kind == CONSTANT and value.size == 1:
            continue
        full += value.ndim >= out.ndim
    node.unary = full <= 1
    node.direct = frozenset(direct)
    return node


def _spread(builder: GraphBuilder, value: Value, operand: ArrayNode, like: Value) -> ArrayNode:
    """An operand of fewer elements repeated; a kernel of the library may need that in memory."""
    key = ("spread", operand.index, value.shape, like.shape)
    if key not in builder.known:
        nbytes = like.size * value.dtype.itemsize
        builder.known[key] = builder.node(
            FUSIBLE, "broadcast_in_dim", nbytes, like.shape, [operand]
        )
        builder.known[key].reuses = True
    return builder.known[key]


def reduce(builder: GraphBuilder, op: Op, operands: list[ArrayNode]) -> ArrayNode:
    out, source = op.outputs[0], op.inputs[0]
    axes = op.params["axes"]
    shape = list(source.shape)
    flops, transcendentals = costs.op_flops(op)
    in_library = builder.kind == "cpu" and NEWER and taken_by_library(op)
    if builder.kind == "cpu" and not in_library and any(shape[a] > REDUCE_WINDOW for a in axes):
        for a in axes:
            shape[a] = -(-shape[a] // REDUCE_WINDOW) if shape[a] > REDUCE_WINDOW else 1
        size = math.prod(shape) * source.dtype.itemsize
        window = builder.node(OPAQUE, "reduce_window", size, tuple(shape), operands[:1], op)
        window.flops, window.transcendentals = flops, transcendentals
        operands, flops, transcendentals = [window], float(math.prod(shape)), 0.0
    node = builder.node(FUSIBLE, "reduce", out.nbytes, out.shape, operands, op)
    node.flops, node.transcendentals = flops, transcendentals
    node.expensive = True
    if builder.kind == "cpu":
        # Only a reduction that includes the minor dimension is worth fusing.
        node.fuses = node.feeds = source.ndim - 1 in axes
    return node
