"""Lowers decisions to the local program: local shapes, and every collective explicit."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax

from ..decide.graph import Graph
from ..decide.sharding import REPLICATED_DIM, Decisions, layout_of
from ..ir.program import Layout, Op, Program, Value
from ..ir.trace import trace
from ..rules import is_zero, rule_of, traits_of
from ..rules.factor import Axes, Rule
from ..rules.turns import turns_of
from .reshard import retiled, steps
from .turns import write_share


def lower(graph: Graph, state: Decisions) -> Program:
    """The program of one device of the mesh, before clean-ups.

    Args:
      graph: the traced program.
      state: what propagation decided.

    Returns:
      A program with values of local shapes and with a `layout`. Outputs that are updated state have
      the layout that they come in with.
    """
    emitter = Emitter(graph, state)
    program = graph.program
    layouts = [state.layout(v) for v in program.inputs]
    outputs: list[Layout | None] = [None] * len(program.outputs)
    for before, _, position in graph.state:
        outputs[position] = state.layout(before)
    local = emitter.region(program, layouts, outputs)
    local.signature = program.signature
    return local


class _Tiling(NamedTuple):
    """The tiling of an op: the axes of each factor, the layouts of operands and results, the local
    shapes of results, the params, and the (axes, monoid) over which results are reduced, if any.
    """

    axes: dict[int, tuple[str, ...]]
    operands: list[Layout]
    results: list[Layout]
    shapes: list[tuple[int, ...]]
    params: dict[str, Any]
    owed: tuple[tuple[str, ...], str] | None


class Emitter:
    """Writes local ops, one region at a time; the :class:`LocalWriter` of rules."""

    def __init__(self, graph: Graph, state: Decisions):
        self.graph = graph
        self.state = state
        self.mesh = state.mesh
        self.ops: list[Op] = []
        self.env: dict[Value, Value] = {}
        self.reshaped: dict[tuple[Value, Layout], Value] = {}
        self.offsets: dict[tuple[tuple[str, ...], int], Value] = {}
        self.tilings: dict[tuple[int, tuple[tuple[str, int], ...]], _Tiling] = {}

    # What rules use: LocalWriter says more.

    def rule(self, op: Op) -> Rule:
        rule = rule_of(op)
        assert rule is not None
        return rule

    def local_shape(self, shape: tuple[int, ...], layout: Layout) -> tuple[int, ...]:
        mesh = self.mesh
        return tuple(
            [
                n // math.prod([mesh[a] for a in axes]) if axes else n
                for n, axes in zip(shape, layout, strict=True)
            ]
        )

    def result_layouts(self, op: Op, axes: Axes) -> list[Layout]:
        return [tuple([axes.get(f, ()) for f in dims]) for dims in self.rule(op).results]

    def is_zero(self, value: Value) -> bool:
        return is_zero(value, self.graph.makers)

    def offset(self, axes: tuple[str, ...], size: int) -> Value:
        found = self.offsets.get((axes, size))
        if found is None:
            found = Value((), jax.numpy.dtype("int32"), layout=())
            self.ops.append(Op("axis_offset", None, (), (found,), {"axes": axes, "size": size}))
            self.offsets[axes, size] = found
        return found

    def function(
        self, like: Op, fn: Callable[..., Any], operands: Sequence[Value], layouts: Sequence[Layout]
    ) -> list[Value]:
        traced = trace(fn, *[jax.ShapeDtypeStruct(v.shape, v.dtype) for v in operands])
        env = dict(zip(traced.inputs, operands, strict=True))
        for op in traced.ops:
            for value in op.outputs:
                value.layout = ((),) * value.ndim
            op.source_info, op.prefix = like.source_info, like.scope
            op.inputs = tuple(env.get(v, v) for v in op.inputs)
            self.ops.append(op)
        results = [env.get(v, v) for v in traced.outputs]
        for value, layout in zip(results, layouts, strict=True):
            value.layout = layout
        return results

    def placed(
        self, like: Op, name: str, operand: Value, layout: Layout, params: dict[str, Any]
    ) -> Value:
        value = self.like(like.outputs[0], layout)
        primitive = like.primitive if name == like.name else None
        self.ops.append(like.beside(name, (operand,), value, params, primitive))
        return value

    # The walk.

    def region(
        self, program: Program, ins: Sequence[Layout], outs: Sequence[Layout | None]
    ) -> Program:
        """Lowers a program with inputs in layouts `ins` and outputs in `outs`
        (None: as they are).
        """
        saved = self.ops, self.env, self.reshaped, self.offsets
        self.ops, self.env, self.reshaped, self.offsets = [], {}, {}, {}
        inputs = []
        for value, layout in zip(program.inputs, ins, strict=True):
            local = self.like(value, layout)
            inputs.append(local)
            self.env[value] = self.reshard(local, self.state.layout(value), None)
        for value in program.constants:
            self.env[value] = self.constant(value)
        for op in program.ops:
            self.lower_op(op)
        outputs = []
        for value, wanted in zip(program.outputs, outs, strict=True):
            local = self.read(value)
            outputs.append(local if wanted is None else self.reshard(local, wanted, None))
        constants = tuple(self.env[v] for v in program.constants)
        lowered = Program(tuple(inputs), tuple(outputs), self.ops, constants)
        self.ops, self.env, self.reshaped, self.offsets = saved
        return lowered

    def like(self, value: Value, layout: Layout) -> Value:
        """A local value for a global one."""
        return value.like(self.local_shape(value.shape, layout), layout)

    def constant(self, value: Value) -> Value:
        local = value.like(layout=((),) * value.ndim)
        local.data = value.data
        return local

    def read(self, value: Value) -> Value:
        local = self.env.get(value)
        if local is None:  # a literal
            assert value.data is not None, value
            local = self.env[value] = self.constant(value)
        return local

    def reshard(self, local: Value, target: Layout, like: Op | None) -> Value:
        """The same array in another layout; what was once resharded is used again."""
        source = local.layout
        assert source is not None
        if source == target:
            return local
        found = self.reshaped.get((local, target))
        if found is not None:
            return found
        value = local
        for name, params, layout in steps(source, target):
            result = retiled(value, layout, self.mesh)
            self.ops.append(
                like.beside(name, (value,), result, params)
                if like
                else Op(name, None, (value,), (result,), params)
            )
            value = result
        self.reshaped[local, target] = value
        return value

    def lower_op(self, op: Op) -> None:
        if op.regions:
            self.lower_region_op(op)
            return
        node = self.graph.of.get(op)
        settled = self.state.factors.get(node) if node is not None else None
        if not settled:
            operands = [self.reshard(self.read(v), ((),) * v.ndim, op) for v in op.inputs]
            run = self.once if traits_of(op.name).host else self.op
            self.finish(op, run(op, operands))
            return
        assert node is not None
        rule = node.rule
        # Alike ops share their rule.
        key = id(rule), tuple(settled.items())
        tiling = self.tilings.get(key)
        if tiling is None:
            tiling = self.tilings[key] = self.tiling(op, rule, settled)
        operands = [
            self.reshard(self.read(v), layout, op)
            for v, layout in zip(op.inputs, tiling.operands, strict=True)
        ]
        if rule.special and not rule.special.isdisjoint(tiling.axes):
            assert rule.expand is not None
            results = rule.expand(self, op, operands, tiling.axes)
        else:
            results = [
                v.like(shape, layout)
                for v, shape, layout in zip(op.outputs, tiling.shapes, tiling.results, strict=True)
            ]
            self.ops.append(op.on(operands, results, tiling.params))
        if tiling.owed:
            results = self.reduce(op, results, *tiling.owed)
        self.finish(op, results)

    def tiling(self, op: Op, rule: Rule, settled: Mapping[str, int]) -> _Tiling:
        """The tiling of an op, and of those of the same rule and factors."""
        axes: dict[int, tuple[str, ...]] = {}
        for axis, factor in settled.items():
            axes[factor] = (*axes.get(factor, ()), axis)
        operands, results = (
            [tuple([axes.get(f, ()) for f in dims]) for dims in sides]
            for sides in (rule.operands, rule.results)
        )
        read, shapes = (
            [self.local_shape(v.shape, layout) for v, layout in zip(values, layouts, strict=True)]
            for values, layouts in ((op.inputs, operands), (op.outputs, results))
        )
        params = op.params
        if rule.localize is not None and rule.special.isdisjoint(axes):
            params = rule.localize(params, read, shapes)
        owed = [(f, a) for f, names in axes.items() if f in rule.monoids for a in names]
        sums = (tuple(a for _, a in owed), rule.monoids[owed[0][0]]) if owed else None
        return _Tiling(axes, operands, results, shapes, params, sums)

    def op(self, op: Op, operands: list[Value]) -> list[Value]:
        """Writes the op itself on whole operands."""
        results = [v.like(v.shape, ((),) * v.ndim) for v in op.outputs]
        self.ops.append(op.on(operands, results))
        return results

    def once(self, op: Op, operands: list[Value]) -> list[Value]:
        """Writes an op that calls the host: the first device calls, and sends the result to all
        others.
        """
        mesh = tuple(a for a in self.mesh if self.mesh[a] > 1)
        if not mesh:
            return self.op(op, operands)
        (first,) = self.function(
            op, lambda rank: (rank == 0).astype("int32"), [self.offset(mesh, 1)], [()]
        )
        owed = [(mesh, "or" if v.dtype == bool else "sum") for v in op.outputs]

        def branch(ops: list[Op], inputs: list[Value], outputs: Sequence[Value]) -> Program:
            for value, partial in zip(outputs, owed, strict=True):
                value.layout, value.partial = ((),) * value.ndim, partial
            return Program(tuple(inputs), tuple(outputs), ops)

        shapes = [(v.shape, v.dtype) for v in op.outputs]
        none = trace(lambda: [jax.numpy.zeros(shape, dtype) for shape, dtype in shapes])
        inner = [v.like() for v in operands]
        made = [self.like(v, ((),) * v.ndim) for v in op.outputs]
        calls = branch([op.on(inner, made)], inner, made)
        silent = branch(none.ops, [v.like() for v in operands], none.outputs)
        results = [v.like(partial=p) for v, p in zip(made, owed, strict=True)]
        chosen = op.on([first, *operands], results, {}, (silent, calls))
        chosen.name, chosen.primitive = "cond", jax.lax.cond_p
        self.ops.append(chosen)
        told = []
        for value, (names, monoid) in zip(results, owed, strict=True):
            told.append(value.like())
            params = {"axes": names, "monoid": monoid}
            self.ops.append(op.beside("all_reduce", (value,), told[-1], params))
        return told

    def reduce(
        self, op: Op, results: list[Value], axes: tuple[str, ...], monoid: str
    ) -> list[Value]:
        """Adds the reduction that results of a tiled sum still owe."""
        reduced = []
        order = tuple(a for a in self.mesh if a in axes)
        for value in results:
            value.partial = (order, monoid)
            whole = value.like()
            params = {"axes": order, "monoid": monoid}
            self.ops.append(op.beside("all_reduce", (value,), whole, params))
            reduced.append(whole)
        return reduced

    def finish(self, op: Op, results: Sequence[Value]) -> None:
        """Stores results in the layouts that were decided for them."""
        for value, local in zip(op.outputs, results, strict=True):
            tiles = self.state.tiles.get(value)
            if tiles:
                if REPLICATED_DIM in tiles.values():
                    local.whole = tuple(a for a, dim in tiles.items() if dim == REPLICATED_DIM)
                layout = layout_of(tiles, len(value.shape))
            else:
                layout = ((),) * len(value.shape)
            self.env[value] = self.reshard(local, layout, op)

    # Ops with regions.

    def lower_region_op(self, op: Op) -> None:
        lowering = {"scan": self.lower_scan, "while": self.lower_while, "cond": self.lower_cond}
        operands, regions, layouts = lowering.get(op.name, self.lower_call)(op)
        results = [self.like(v, layout) for v, layout in zip(op.outputs, layouts, strict=True)]
        if axes := self.turn_axes(op):
            turns = turns_of(op)
            assert turns is not None
            share = op.params["length"] // math.prod(self.mesh[a] for a in axes)
            results = write_share(self, op, turns, axes, share, operands, regions, results)
        else:
            self.ops.append(op.on(operands, results, regions=regions))
        self.finish(op, results)

    def turn_axes(self, op: Op) -> tuple[str, ...]:
        """The axes over which the turns of a loop are split, major to minor."""
        node = self.graph.loops.get(op)
        return () if node is None else tuple(self.state.factors.get(node, ()))

    def enter(self, op: Op, values: Sequence[Value], layouts: Sequence[Layout]) -> list[Value]:
        return [
            self.reshard(self.read(v), layout, op)
            for v, layout in zip(values, layouts, strict=True)
        ]

    def out_layouts(self, program: Program, ins: Sequence[Layout]) -> list[Layout]:
        """The layouts that a region's outputs have when they are made."""
        known = dict(zip(program.inputs, ins, strict=True))
        return [
            ((),) * v.ndim if v.data is not None else known.get(v, self.state.layout(v))
            for v in program.outputs
        ]

    def lower_scan(self, op: Op) -> tuple[list[Value], tuple[Program, ...], list[Layout]]:
        (body,) = op.regions
        consts, carry = op.params["num_consts"], op.params["num_carry"]
        ins = [self.state.layout(v) for v in body.inputs]
        outs = self.out_layouts(body, ins)
        outs[:carry] = ins[consts : consts + carry]
        local = self.region(body, ins, outs)
        turns = self.turn_axes(op)
        entry = ins[: consts + carry] + [(turns, *layout) for layout in ins[consts + carry :]]
        return (
            self.enter(op, op.inputs, entry),
            (local,),
            outs[:carry] + [(turns, *x) for x in outs[carry:]],
        )

    def lower_while(self, op: Op) -> tuple[list[Value], tuple[Program, ...], list[Layout]]:
        cond, body = op.regions
        cond_consts, body_consts = op.params["cond_nconsts"], op.params["body_nconsts"]
        ins = [self.state.layout(v) for v in body.inputs]
        carried = ins[body_consts:]
        cond_ins = [self.state.layout(v) for v in cond.inputs[:cond_consts]] + carried
        local_cond = self.region(cond, cond_ins, [((),) * v.ndim for v in cond.outputs])
        local_body = self.region(body, ins, carried)
        operands = self.enter(op, op.inputs, cond_ins[:cond_consts] + ins)
        return operands, (local_cond, local_body), carried

    def lower_cond(self, op: Op) -> tuple[list[Value], tuple[Program, ...], list[Layout]]:
        operands = [self.reshard(self.read(op.inputs[0]), (), op)]
        operands += [self.read(v) for v in op.inputs[1:]]
        ins = [v.layout or () for v in operands[1:]]
        outs = [self.state.layout(v) for v in op.outputs]
        return operands, tuple(self.region(branch, ins, outs) for branch in op.regions), outs

    def lower_call(self, op: Op) -> tuple[list[Value], tuple[Program, ...], list[Layout]]:
        (body,) = op.regions
        ins = [self.state.layout(v) for v in body.inputs]
        outs = self.out_layouts(body, ins)
        return self.enter(op, op.inputs, ins), (self.region(body, ins, outs),), outs
