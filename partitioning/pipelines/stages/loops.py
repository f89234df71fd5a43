"""Loops over steps of an optimizer, such as those over epochs and minibatches.

Each turn of such a loop sends micro-batches of its own through the pipeline. What enters it and
leaves it is whole: rows of all micro-batches are collected before it, and cut inside.
"""

from __future__ import annotations

from collections.abc import Callable

from ...ir.program import Layout, Op, Program, Value


class LoopsOfSteps:
    """Rewrites the loops of a micro-batch's program that exchange between micro-batches.

    Args:
      axis: of the micro-batches.
      crosses: tells of an op whether it reads other micro-batches than its own.
      whole: makes the value for all micro-batches of one that is tiled over them.
      in_time: writes exchanges between micro-batches as ops of one device, at the top of a program.
    """

    def __init__(
        self,
        axis: str,
        crosses: Callable[[Op], bool],
        whole: Callable[[Value], Value],
        in_time: Callable[[Program], None],
    ):
        self._axis, self._crosses, self._whole, self._in_time = axis, crosses, whole, in_time

    def rewrite(self, program: Program) -> None:
        """Rewrites the loops of a program in place, outer ones first."""
        makers = {v: op for op in program.ops for v in op.outputs}
        ops: list[Op] = []
        for op in program.ops:
            inside = (o for region in op.regions for o in region.walk())
            if op.name != "scan" or not any(map(self._crosses, inside)) or "turns" in op.params:
                ops.append(op)
                continue
            before, loop, behind = self._rewritten(op, makers)
            ops += [*before, loop, *behind]
            (body,) = loop.regions
            self._in_time(body)
            self.rewrite(body)
        program.ops = ops

    def _rewritten(self, op: Op, makers: dict[Value, Op]) -> tuple[list[Op], Op, list[Op]]:
        """The ops before a loop, the loop between whole values, and those behind it."""
        (body,) = op.regions
        consts, carries = op.params["num_consts"], op.params["num_carry"]
        before, behind, cut = [], [], []
        operands, inputs, results = [*op.inputs], [*body.inputs], [*op.outputs]
        for i, (outer, inner) in enumerate(zip(op.inputs, body.inputs, strict=True)):
            dim = self._dim(inner)
            if dim is None:
                continue
            stacked = int(i >= consts + carries)
            operands[i] = self._cut_from(outer, makers)
            if operands[i] is outer:
                operands[i] = self._whole(outer)
                made = {"dim": dim + stacked}
                before.append(op.beside("collect", (outer,), operands[i], made))
            inputs[i] = self._whole(inner)
            cut.append(self._slice(op, inputs[i], inner))
        for i, result in enumerate(op.outputs):
            if self._dim(result) is not None:
                results[i] = self._whole(result)
                behind.append(self._slice(op, results[i], result))
        whole = {o.outputs[0]: o.inputs[0] for o in cut}
        known = {v: v for v in body.outputs}
        inner_ops: list[Op] = []
        for o in body.ops:
            gathered = o.name == "all_gather" and o.params["axes"] == (self._axis,)
            if gathered and o.inputs[0] in whole:
                known[o.outputs[0]] = whole[o.inputs[0]]
            else:
                inner_ops.append(
                    o.on([known.get(v, v) for v in o.inputs], o.outputs, None, o.regions)
                )
        outputs = tuple(known[v] for v in body.outputs)
        region = Program(tuple(inputs), outputs, [*cut, *inner_ops], body.constants)
        return before, op.on(operands, results, None, (region,)), behind

    def _dim(self, value: Value) -> int | None:
        """The dimension that is tiled over micro-batches."""
        return next((d for d, a in enumerate(value.layout or ()) if self._axis in a), None)

    def _cut_from(self, value: Value, makers: dict[Value, Op]) -> Value:
        """The value that a micro-batch's rows are cut from; the value itself if it is no such."""
        op = makers.get(value)
        if op is None or op.name != "all_slice":
            return value
        alone = all(axes in ((), (self._axis,)) for axes in op.params["slices"])
        return op.inputs[0] if alone else value

    def _slice(self, op: Op, whole: Value, part: Value) -> Op:
        """The op that cuts a micro-batch's rows from all of them."""
        return cut_rows(op, whole, part, self._axis)


def cut_rows(op: Op, whole: Value, part: Value, axis: str) -> Op:
    """An op beside another one that cuts a micro-batch's part from a value of all micro-batches."""
    layout: Layout = part.layout or ()
    slices = tuple((axis,) if axis in axes else () for axes in layout)
    return op.beside("all_slice", (whole,), part, {"slices": slices})
