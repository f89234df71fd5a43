"""Loops, branches and regions that are inlined."""

from __future__ import annotations

from ...ir.program import Op, Program
from ..costs import platform_branch
from .builder import GraphBuilder
from .nodes import (
    BRANCH,
    CONSTANT,
    ELEMENT,
    FUSIBLE,
    LOOP,
    OPAQUE,
    PARAM,
    ArrayGraph,
    ArrayNode,
    uniform,
)


def inline(builder: GraphBuilder, op: Op) -> None:
    region = op.regions[0]
    sources = [builder.read(v) for v in op.inputs]
    outside = builder.epoch
    apart = op.name == "checkpoint" and op.params.get("prevent_cse", True)
    if apart and op.params.get("differentiated", True) and builder.keeps_barriers:
        # What is computed again is not shared with the first time, and waits for cotangents.
        builder.epoch = len(builder.graph.nodes) + 1
        sources = barrier(builder, op, sources)
    for inner, source in zip(region.inputs, sources, strict=True):
        builder.env[inner] = source
    builder.run(region)
    builder.epoch = outside
    for outer, inner in zip(op.outputs, region.outputs, strict=True):
        builder.env[outer] = builder.read(inner)


def barrier(builder: GraphBuilder, op: Op, sources: list[ArrayNode]) -> list[ArrayNode]:
    """The same arrays, none of them to be had before all are."""
    group = builder.node(OPAQUE, "barrier", 0, (), sources, op)
    passed: dict[ArrayNode, ArrayNode] = {}
    for position, source in enumerate(group.operands):
        if source.kind == CONSTANT:
            passed[source] = source
            continue
        node = builder.node(ELEMENT, "barrier", source.nbytes, source.shape, [group], op)
        node.data, node.in_place = position, position
        passed[source] = node
    return [passed[source] for source in sources]


def scan(builder: GraphBuilder, op: Op) -> None:
    consts, carry = op.params["num_consts"], op.params["num_carry"]
    region = op.regions[0]
    inner = builder.inside()
    counter = inner.node(PARAM, "counter", 4, ())
    params: list[ArrayNode] = []
    for i, (inside, outside) in enumerate(zip(region.inputs, op.inputs, strict=True)):
        param = inner.param(outside)
        params.append(param)
        if i < consts and outside.layout is not None and uniform(builder.read(outside)):
            # Loops of partitioned programs make such constants themselves.
            inner.env[inside] = inner.zeros(outside, builder.read(outside).operands)
        elif i < consts + carry:
            inner.env[inside] = param
        else:
            piece = inner.node(
                FUSIBLE, "dynamic_slice", inside.nbytes, inside.shape, [param, counter], op
            )
            inner.env[inside] = piece
    stacks = [inner.param(v) for v in op.outputs[carry:]]
    inner.graph.params = [counter, *params, *stacks]
    inner.run(region)
    results = [inner.read(v) for v in region.outputs]
    updates = []
    for stack, piece in zip(stacks, results[carry:], strict=True):
        update = inner.node(
            FUSIBLE,
            "dynamic_update_slice",
            stack.nbytes,
            stack.shape,
            [stack, piece, counter],
            op,
        )
        update.in_place = 0
        update.unary = False
        updates.append(update)
    inner.graph.outputs = [*results[:carry], *updates]
    inner.graph.carried = [*params[consts : consts + carry], *stacks]
    inner.graph.trips = int(op.params["length"])
    inner.finish()
    zeros = [builder.zeros(v) for v in op.outputs[carry:]]
    operands = [builder.read(v) for v in op.inputs]
    starts = operands[consts : consts + carry]
    read = [n for i, n in enumerate(operands) if params[i].users or consts <= i < consts + carry]
    loop(builder, op, [*read, *zeros], inner.graph, [*starts, *zeros])


def _inside(builder: GraphBuilder, region: Program) -> GraphBuilder:
    """The graph of a region, with its inputs as parameters and its results as outputs."""
    inner = builder.inside()
    for inside in region.inputs:
        inner.env[inside] = inner.param(inside)
    inner.graph.params = list(inner.graph.nodes)
    inner.run(region)
    inner.graph.outputs = [inner.read(v) for v in region.outputs]
    return inner


def while_loop(builder: GraphBuilder, op: Op) -> None:
    skip, consts = op.params["cond_nconsts"], op.params["body_nconsts"]
    region = op.regions[1]
    inner = _inside(builder, region)
    inner.graph.carried = inner.graph.params[consts:]
    inner.graph.trips = op.trips
    inner.finish()
    operands = [builder.read(v) for v in op.inputs]
    loop(builder, op, operands, inner.graph, operands[skip + consts :])


def loop(
    builder: GraphBuilder,
    op: Op,
    operands: list[ArrayNode],
    body: ArrayGraph,
    carried: list[ArrayNode],
) -> None:
    node = builder.node(LOOP, op.name, 0, (), operands, op)
    node.body = (body,)
    node.data = carried
    for i, value in enumerate(op.outputs):
        builder.element(node, i, value)


def cond(builder: GraphBuilder, op: Op) -> None:
    taken = platform_branch(op, builder.kind)
    if taken is not None:
        for inside, outside in zip(taken.inputs, op.inputs[1:], strict=True):
            builder.env[inside] = builder.read(outside)
        builder.run(taken)
        for outer, value in zip(op.outputs, taken.outputs, strict=True):
            builder.env[outer] = builder.read(value)
        return
    operands = [builder.read(v) for v in op.inputs]
    node = builder.node(BRANCH, "cond", 0, (), operands, op)
    bodies = []
    for region in op.regions:
        inner = _inside(builder, region)
        inner.finish()
        bodies.append(inner.graph)
    node.body = tuple(bodies)
    for i, value in enumerate(op.outputs):
        builder.element(node, i, value)
