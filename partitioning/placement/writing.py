"""The last clean-up: sums between devices as the programs chosen for them.

Axes that lie on several levels are cut into one part for each, everywhere in the local program, so
that a collective may run over a part. Then each sum becomes the steps of its program. What is
scattered is a dimension that divides; where none does, one is padded with zeros.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import numpy as np
from jax import lax

from ..ir.program import Layout, Op, Program, Value
from .synthesis import ReductionProgram

#: Mesh axis to its parts, the outermost first; axes that are whole are not in it.
Parts = Mapping[str, Collection[str]]

#: For a sum: the axes of each level that it spans, innermost first, and the program over these
#: levels; None where it stays as it is.
Chosen = Callable[[Op], tuple[Sequence[tuple[str, ...]], ReductionProgram] | None]


def summable(op: Op) -> bool:
    """True if an op is a sum over devices that a program may take the place of."""
    return (
        op.name == "all_reduce"
        and op.params["monoid"] == "sum"
        and bool(op.inputs[0].shape)
        and np.dtype(op.inputs[0].dtype).kind not in "b"
    )


def written(program: Program, mesh: Mapping[str, int], parts: Parts, chosen: Chosen) -> Program:
    """A local program with its axes in parts and its sums as steps.

    Args:
      program: stays as it is.
      mesh: sizes of the parts, and of the axes that are whole.
      parts: how axes are cut.
      chosen: from a sum, with its axes already in parts, to its steps.
    """
    return _Writer(mesh, parts, chosen).program(program)


class _Writer:
    """Writes a program and its regions anew; unchanged parts are shared with the old one."""

    def __init__(self, mesh: Mapping[str, int], parts: Parts, chosen: Chosen):
        self.mesh = mesh
        self.parts = parts
        self.chosen = chosen
        self.values: dict[Value, Value] = {}

    def program(self, old: Program) -> Program:
        inputs = tuple(self._value(v) for v in old.inputs)
        constants = tuple(self._value(v) for v in old.constants)
        ops: list[Op] = []
        for op in old.ops:
            ops += self._op(op)
        outputs = tuple(self._value(v) for v in old.outputs)
        return Program(inputs, outputs, ops, constants, old.signature)

    def _op(self, op: Op) -> list[Op]:
        regions = tuple(self.program(region) for region in op.regions)
        inputs, outputs = ([self._value(v) for v in values] for values in (op.inputs, op.outputs))
        new = op.on(inputs, outputs, self._params(op), regions)
        if summable(new) and (program := self.chosen(new)) is not None:
            return self._steps(new, *program)
        return [new]

    # -- axes in parts ----------------------------------------------------------------------------

    def _axes(self, axes: Sequence[str]) -> tuple[str, ...]:
        return tuple(part for axis in axes for part in self.parts.get(axis, (axis,)))

    def _layout(self, layout: Layout) -> Layout:
        return tuple(self._axes(axes) for axes in layout)

    def _value(self, value: Value) -> Value:
        if value not in self.values:
            new = value
            layout = value.layout or ()
            owed = value.partial[0] if value.partial else ()
            if any(axis in self.parts for axes in (*layout, owed, value.whole) for axis in axes):
                partial = value.partial and (self._axes(owed), value.partial[1])
                new = value.like(layout=self._layout(layout), partial=partial)
                new.whole, new.data = self._axes(value.whole), value.data
            self.values[value] = new
        return self.values[value]

    def _params(self, op: Op) -> dict[str, Any]:
        if "turns" not in op.params and (op.primitive is not None or op.regions):
            return op.params
        params = dict(op.params)
        for name in ("axes", "turns"):
            if name in params:
                params[name] = self._axes(params[name])
        for name in ("slices", "parts"):
            if name in params:
                params[name] = self._layout(params[name])
        return params

    # -- sums as steps ----------------------------------------------------------------------------

    def _steps(
        self, op: Op, levels: Sequence[tuple[str, ...]], program: ReductionProgram
    ) -> list[Op]:
        """The ops of one sum; the last makes the value that the sum made."""
        (value,), (result,) = op.inputs, op.outputs
        axes_of = [tuple(a for i in on for a in levels[i]) for _, on in program]
        parts = math.prod(
            self.mesh[axis]
            for (kind, _), axes in zip(program, axes_of, strict=True)
            if kind == "reduce_scatter"
            for axis in axes
        )
        dim, padding = scattered_dim(value.shape, parts)
        ops: list[Op] = []
        size = value.shape[dim]
        if padding:
            value = self._padded(op, value, dim, padding, ops)
        last = len(program) - 1
        for i, ((kind, _), axes) in enumerate(zip(program, axes_of, strict=True)):
            after = self._after(value, kind, dim, axes)
            if i == last and not padding:
                after = result
            params: dict[str, Any] = {"axes": axes}
            if kind != "all_reduce":
                params = {"dim": dim, **params}
            if kind != "all_gather":
                params["monoid"] = "sum"
            ops.append(op.beside(kind, (value,), after, params))
            value = after
        if padding:
            limits = tuple(size if d == dim else n for d, n in enumerate(value.shape))
            sliced = {
                "start_indices": (0,) * value.ndim, "limit_indices": limits, "strides": None
            }  # fmt: skip
            ops.append(op.beside("slice", (value,), result, sliced, lax.slice_p))
        return ops

    def _after(self, value: Value, kind: str, dim: int, axes: tuple[str, ...]) -> Value:
        """The value after one step."""
        shape, layout = list(value.shape), list(value.layout or ())
        count = math.prod(self.mesh[axis] for axis in axes)
        if kind == "all_gather":
            shape[dim] *= count
            layout[dim] = layout[dim][: len(layout[dim]) - len(axes)]
        elif kind == "reduce_scatter":
            shape[dim] //= count
            layout[dim] = (*layout[dim], *axes)
        partial = value.partial
        if kind != "all_gather":
            assert partial is not None
            rest = tuple(axis for axis in partial[0] if axis not in axes)
            partial = (rest, partial[1]) if rest else None
        return value.like(tuple(shape), tuple(layout), partial)

    def _padded(self, op: Op, value: Value, dim: int, padding: int, ops: list[Op]) -> Value:
        config = tuple((0, padding if d == dim else 0, 0) for d in range(value.ndim))
        shape = tuple(n + high for n, (_, high, _) in zip(value.shape, config, strict=True))
        padded = value.like(shape, partial=value.partial)
        zero = Value((), value.dtype, data=np.zeros((), value.dtype), layout=())
        pad = {"padding_config": config}
        ops.append(op.beside("pad", (value, zero), padded, pad, lax.pad_p))
        return padded


def scattered_dim(shape: Sequence[int], parts: int) -> tuple[int, int]:
    """The dimension that is scattered in so many parts, and by how much it is padded for it.

    The first that divides, as the parts of it lie together; else that which grows least.
    """
    for dim, size in enumerate(shape):
        if size and size % parts == 0:
            return dim, 0
    grown = [(-size % parts) / max(size, 1) for size in shape]
    dim = min(range(len(shape)), key=grown.__getitem__)
    return dim, -shape[dim] % parts
