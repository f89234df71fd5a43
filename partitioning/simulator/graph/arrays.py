"""Ops that may be computed inside another kernel: elementwise, moves, reductions; and views."""

from __future__ import annotations

import math

from ...ir.program import Op, Value
from ...rules import traits_of
from .. import costs
from .builder import GraphBuilder
from .library import taken_by_library
from .nodes import CONSTANT, FUSIBLE, NEWER, OPAQUE, ArrayNode, uniform

REDUCE_WINDOW = 32  # a reduction over a longer dimension first reduces blocks of this length


def is_view(builder: GraphBuilder, op: Op, operands: list[ArrayNode]) -> bool:
    """True if the op's result is its first operand's buffer."""
    if not op.inputs or len(op.outputs) != 1:
        return False
    (out,), source, view = op.outputs, op.inputs[0], traits_of(op.name).view
    if view == "same":
        return out.size == source.size and out.dtype == source.dtype
    if view == "order":
        moved = [d for d in op.params["permutation"] if source.shape[d] > 1]
        if moved == sorted(moved):
            return True
        # The transpose of a plain matrix product is the product of the swapped operands; that of a
        # batch of products is made anew as well, but for a copy.
        last = out.ndim - 1
        batched = (*range(last - 1), last, last - 1)
        swapped = operands[0].name == "dot" and len(operands[0].shape) == out.ndim
        operands[0].late |= swapped and tuple(op.params["permutation"]) == batched
        return swapped and out.ndim == 2
    return view == "always"


def fusible(builder: GraphBuilder, op: Op, operands: list[ArrayNode]) -> ArrayNode:
    name, out, traits = op.name, op.outputs[0], traits_of(op.name)
    if traits.traffic == "part" and not traits.lookup and uniform(operands[0]):
        # A part of it is uniform as well.
        name, operands = operands[0].name, operands[0].operands
        traits = traits_of(name)
    if traits.elementwise and builder.kind == "cpu" and NEWER:
        operands = [
            _spread(builder, value, operand, out) if value.size < out.size else operand
            for value, operand in zip(op.inputs, operands, strict=True)
        ]
    node = builder.node(FUSIBLE, name, out.nbytes, out.shape, operands, op)
    node.flops, node.transcendentals = costs.op_flops(op)
    floating = getattr(out.dtype, "kind", "f") in "fcV"
    node.expensive = (
        traits.lookup
        or traits.flops in ("transcendental", "logistic")
        or (traits.flops == "division" and floating)
    )
    node.elementwise = traits.elementwise
    node.reuses = traits.broadcasts or traits.lookup
    node.in_place = 0 if traits.traffic == "update" else -1
    full = 0
    direct = []
    # A part of a uniform array reads what that array read: fewer operands than the op has.
    for value, operand in zip(op.inputs[: len(operands)], operands, strict=True):
        if value.shape == operand.shape:
            direct.append(operand)
        repeated = traits.elementwise and value.size < out.size  # as a broadcast is
        if repeated or traits_of(operand.name).source:
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
