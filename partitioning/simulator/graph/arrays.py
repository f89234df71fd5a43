"""Ops that may be computed inside another kernel: elementwise, moves, reductions; and views."""

from __future__ import annotations

import math

import numpy as np

from ...ir.program import Op, Value
from ...rules import traits_of
from .. import costs
from .builder import GraphBuilder
from .library import taken_by_library
from .nodes import CONSTANT, FUSIBLE, NEWER, OPAQUE, REDUCE_WINDOW, ArrayNode, uniform


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


def unchanged(op: Op) -> int:
    """The operand that the result is equal to, as its other one changes nothing; or -1."""
    neutral = traits_of(op.name).neutral
    if neutral is None:
        return -1
    for at, other in enumerate(op.inputs):
        kept = op.inputs[1 - at]
        scalar = other.data is not None and other.size == 1
        whole = kept.shape == op.outputs[0].shape
        if scalar and whole and np.asarray(other.data).item() == neutral:
            return 1 - at
    return -1


def fusible(builder: GraphBuilder, op: Op, operands: list[ArrayNode], at: int = 0) -> ArrayNode:
    """The node of an op that may be computed inside another kernel: of its result number `at`."""
    name, out, traits = op.name, op.outputs[at], traits_of(op.name)
    if traits.traffic == "part" and not traits.lookup and uniform(operands[0]):
        # A part of it is uniform as well.
        name, operands = operands[0].name, operands[0].operands
        traits = traits_of(name)
    if traits.elementwise and builder.kind == "cpu":
        operands = [
            _spread(builder, value, operand, out) if value.size < out.size else operand
            for value, operand in zip(op.inputs, operands, strict=True)
        ]
    if traits.elementwise and builder.kind == "gpu":
        operands = [
            builder.spread_zero(value, operand, out)
            for value, operand in zip(op.inputs, operands, strict=True)
        ]
    if traits.flops == "division" and traits.linear and builder.kind == "cpu" and NEWER:
        inverse = _inverse(builder, op, operands[-1])
        if inverse is not None:
            operands, name, traits = [operands[0], inverse], "mul", traits_of("mul")
    made = operands
    for _ in range(traits.halfway if builder.kind == "cpu" else 0):
        made = [*made, _halfway(builder, op, made)]
    shape = out.shape
    if traits.lookup and builder.kind == "cpu":
        # One dimension of places, and every dimension of the table, however thin.
        shape = (math.prod(op.inputs[1].shape[:-1]), *op.params["slice_sizes"])
    node = builder.node(FUSIBLE, name, out.nbytes, shape, made, op)
    node.flops, node.transcendentals = costs.op_flops(op)
    floating = getattr(out.dtype, "kind", "f") in "fcV"
    kind = getattr(out.dtype, "kind", "f")
    formula = traits.flops in ("transcendental", "logistic") and not traits.halfway
    node.expensive = (
        traits.lookup
        or (formula and (kind == "c" or not traits.quick))
        or (traits.flops == "division" and floating and not _by_a_number(op))
        or _divides(op)
        or (traits.relayout and str(out.dtype) == "bfloat16" != str(op.inputs[0].dtype))
    )
    node.elementwise = traits.elementwise
    # Where a part begins is known only as it runs: for all that the compiler knows, anywhere.
    node.reuses = traits.broadcasts or (traits.traffic == "part" and traits.view == "never")
    node.permutes = traits.rearranges and traits.view == "order"
    node.branches = traits.joins or traits.surrounds >= 0 or traits.traffic == "update"
    if builder.kind == "cpu" and traits.joins and _is_copied(op):
        node.fuses = node.feeds = False
    node.in_place = 0 if traits.traffic == "update" else -1
    full = 0
    direct = []
    # A part of a uniform array reads what that array read: fewer operands than the op has.
    for value, operand in zip(op.inputs[: len(operands)], operands, strict=True):
        if value.shape == operand.shape:
            direct.append(operand)
        else:
            node.reshaped[operand] = value.shape
        repeated = traits.elementwise and value.size < out.size  # as a broadcast is
        if repeated or traits_of(operand.name).source:
            continue
        if operand.kind == CONSTANT and value.size == 1:
            continue
        full += value.ndim >= out.ndim
    node.unary = full <= 1
    node.direct = frozenset(direct)
    return node


def _inverse(builder: GraphBuilder, op: Op, divisor: ArrayNode) -> ArrayNode | None:
    """A repeated divisor's inverse, repeated: fewer are divided, and the rest multiplied."""
    if not traits_of(divisor.name).broadcasts or uniform(divisor) or len(divisor.operands) != 1:
        return None
    (source,) = divisor.operands
    dtype = op.inputs[-1].dtype
    if traits_of(source.name).flops == "transcendental":
        return None  # a function and its inverse are one
    if math.prod(source.shape) >= math.prod(divisor.shape) or getattr(dtype, "kind", "f") in "iub":
        return None
    key = ("inverse", divisor.index)
    if key not in builder.known:
        one = builder.node(FUSIBLE, op.name, source.nbytes, source.shape, [source], op)
        one.expensive = one.elementwise = True
        one.direct = frozenset([source])
        wide = builder.node(FUSIBLE, divisor.name, divisor.nbytes, divisor.shape, [one], divisor.op)
        wide.reuses = True
        builder.known[key] = wide
    return builder.known[key]


def _divides(op: Op) -> bool:
    """True of a negative power."""
    exponent = op.params.get("y")
    return isinstance(exponent, int) and exponent < 0


def _by_a_number(op: Op) -> bool:
    """True of a division by a constant: compilers multiply by its inverse."""
    divisor = op.inputs[-1]
    return divisor.data is not None and divisor.size == 1


def _halfway(builder: GraphBuilder, op: Op, operands: list[ArrayNode]) -> ArrayNode:
    """An array on the way to the result, expensive and needed in several places of its formula."""
    out = op.outputs[0]
    node = builder.node(FUSIBLE, op.name, out.nbytes, out.shape, operands[-1:], op)
    node.expensive = node.elementwise = True
    node.feeds = False
    node.direct = frozenset(n for n in node.operands if n.shape == node.shape)
    return node


def filled(builder: GraphBuilder, op: Op, picked: ArrayNode, at: ArrayNode) -> ArrayNode:
    """What a lookup picks, with a number in the place of what lies outside of the table.

    Args:
      op: the lookup.
      picked: its node, as if every index were inside.
      at: the indices.
    """
    out, places = op.outputs[0], op.inputs[1]
    shape = places.shape[:-1]
    inside = builder.node(FUSIBLE, "and", math.prod(shape), shape, [at], op)
    spread = builder.node(FUSIBLE, "broadcast_in_dim", out.size, out.shape, [inside], op)
    spread.reuses = True
    zeros = builder.zeros(out)
    node = builder.node(FUSIBLE, "select_n", out.nbytes, out.shape, [picked, spread, zeros], op)
    node.elementwise = True
    node.direct = frozenset(n for n in node.operands if n.shape == out.shape)
    if picked.shape != out.shape:
        node.reshaped[picked] = out.shape
    node.flops = float(out.size)
    return node


def _is_copied(op: Op) -> bool:
    """True if pieces are copied into place: many of them, or pieces of long rows."""
    out = op.outputs[0]
    rows = out.ndim > 1 and op.params.get("dimension") == out.ndim - 1
    return len(op.inputs) > 8 or (rows and out.shape[-1] >= 128)


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
    node.expensive = node.branches = True
    if builder.kind == "cpu":
        # Only a reduction that includes the minor dimension is worth fusing.
        node.fuses = node.feeds = source.ndim - 1 in axes
    return node
