"""Builds the graph of a program: each op goes to the module that knows how it is compiled."""

from __future__ import annotations

from typing import Any

from ...ir.program import COLLECTIVES, Op, Program
from ...rules import traits_of
from .arrays import filled, fusible, is_view, reduce, unchanged
from .builder import GraphBuilder
from .combine import combine_all_reduces
from .control import cond, inline, scan, while_loop
from .nodes import NEWER, OPAQUE, ArrayGraph, ArrayNode
from .opaque import opaque, random, select_and_scatter
from .products import convolution, dot


def build(program: Program, kind: str = "cpu") -> ArrayGraph:
    """The compiler's view of a program.

    Args:
      program: global or local.
      kind: the device's kind; it decides how reductions, half-precision products and checkpoints
        are compiled.
    """
    builder = GraphBuilder(kind, lower)
    for value in program.inputs:
        builder.env[value] = builder.param(value)
    builder.graph.params = list(builder.graph.nodes)
    builder.run(program)
    builder.graph.outputs = [builder.read(v) for v in program.outputs]
    if kind == "cpu" and NEWER:
        combine_all_reduces(builder.graph)
    return builder.finish()


def lower(builder: GraphBuilder, op: Op) -> None:
    if op.regions:
        _REGIONS[op.name](builder, op)
    else:
        plain(builder, op)


#: Ops with regions have no traits: what they cost is what is inside, run as their structure says.
_REGIONS = {"checkpoint": inline, "scan": scan, "while": while_loop, "cond": cond}


def plain(builder: GraphBuilder, op: Op) -> None:
    name, inputs = op.name, op.inputs
    out = op.outputs[0] if op.outputs else None
    if out is None:
        return
    traits = traits_of(name)
    if traits.view == "always" and len(inputs) == len(op.outputs):
        for value, source in zip(op.outputs, inputs, strict=True):
            builder.env[value] = builder.read(source)
        return
    operands = [builder.read(v) for v in inputs]
    if (kept := unchanged(op)) >= 0:
        builder.env[out] = operands[kept]
        return
    if is_view(builder, op, operands):
        builder.env[out] = operands[0]
        return
    if traits.broadcasts and builder.kind == "gpu" and builder.is_zero(inputs[0], operands[0]):
        builder.env[out] = builder.zeros(out)
        return
    try:
        params = (
            tuple(op.params.values())
            if not traits.broadcasts
            else op.params.get("broadcast_dimensions")
        )
        key: Any = (
            name,
            builder.epoch,
            out.shape,
            out.dtype,
            params,
            *[n.index for n in operands],
        )
        known = (
            builder.known.get(key)
            if not op.effects and (NEWER or name not in COLLECTIVES)
            else None
        )
    except TypeError:  # params that cannot be hashed are never shared
        key = known = None
    if known is not None:
        if len(op.outputs) == 1:
            builder.env[out] = known
        else:
            for value, element in zip(op.outputs, known.data, strict=True):
                builder.env[value] = element
        return
    node = make(builder, op, operands)
    if traits.overwrites >= 0 or (traits.elementwise and not builder.columns.isdisjoint(operands)):
        builder.columns.add(node)
    if node.kind == OPAQUE:
        for value, operand in zip(inputs, operands, strict=True):
            if operand in node.operands and value.shape != operand.shape:
                node.reshaped[operand] = value.shape
        if traits.traffic == "scatter":
            # One dimension of places, as for a lookup.
            node.reshaped[operands[2]] = (1, *inputs[2].shape)
    if key is not None:
        builder.known[key] = node


def make(builder: GraphBuilder, op: Op, operands: list[ArrayNode]) -> ArrayNode:
    """The node (or nodes) of an op; binds its outputs."""
    out, kernel = op.outputs[0], traits_of(op.name).kernel
    if kernel == "fused" and len(op.outputs) > 1:
        parts = [fusible(builder, op, operands, at) for at in range(len(op.outputs))]
        parts[0].data = parts
        builder.env.update(zip(op.outputs, parts, strict=True))
        return parts[0]
    if kernel == "fused":
        node = fusible(builder, op, operands)
        if getattr(op.params.get("mode"), "name", "") == "FILL_OR_DROP":
            node = filled(builder, op, node, operands[1])
    elif kernel == "dot":
        node = dot(builder, op, operands)
    elif kernel == "reduce":
        node = reduce(builder, op, operands)
    elif kernel == "convolution" and builder.kind == "cpu":
        node = convolution(builder, op, operands)
    elif kernel == "random" and builder.kind == "cpu" and operands:
        node = random(builder, op, operands)
    elif kernel == "select_and_scatter" and builder.kind == "cpu":
        node = select_and_scatter(builder, op, operands)
    else:
        return opaque(builder, op, operands)
    builder.env[out] = node
    return node
