"""Rewrites lookups into the form that their rules see most of: counted columns become batches,
and splits move inside.

A rule sees an op alone. Only the ops that made the indices of `x[arange(B), i]` show that it takes
one element of each row, as `vmap` of `x[i]` does; here the first is written as the second. Starts
of slices are clamped, so that the slices end within the array.
"""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from ..ir.program import Op, Program, Value
from .shape import regrouped
from .traits import traits_of


def canonicalize(program: Program) -> None:
    """Rewrites the lookups of a traced program and its regions, in place.

    Where a column of a gather's or scatter's indices counts along a batch dimension, that dimension
    and the table's become batch dimensions of the op. Where the rows that a gather picked are
    split afterwards (`x[order].reshape(4, -1)`), the indices are split before.
    Where a slice begins is clamped beforehand, unless it is known to be in range: XLA in jaxlib 0.6
    adds the starts of a slice and of a device's share of it, and clamps their sum alone.
    """
    _clamp_starts(program)
    if any(_indexed(op) for op in program.walk()):
        _Rewriter(program).region(program)


def _clamp_starts(program: Program) -> None:
    ops: list[Op] = []
    for op in program.ops:
        for region in op.regions:
            _clamp_starts(region)
        if op.name == "dynamic_slice":
            array, *starts = op.inputs
            clamped = []
            for start, size, part in zip(
                starts, array.shape, op.params["slice_sizes"], strict=True
            ):
                last = min(size - part, np.iinfo(start.dtype).max)
                if start.data is None or not 0 <= start.data <= last:
                    first, end = (
                        Value((), start.dtype, data=np.asarray(bound, start.dtype))
                        for bound in (0, last)
                    )
                    asked, start = start, first if last == 0 else start.like()
                    if last:
                        ops.append(op.beside("clamp", (first, asked, end), start, {}, lax.clamp_p))
                clamped.append(start)
            op = op.on((array, *clamped), op.outputs)
        ops.append(op)
    program.ops = ops


def _indexed(op: Op) -> bool:
    return "dimension_numbers" in op.params and op.params.get("mode") is not None


class _Rewriter:
    """Knows who makes what, in all regions.

    Attributes:
      makers: the op that makes a value.
      same: for a region's input, or the result of an op with regions, the value on the other side
        and how many leading dimensions it has more.
    """

    def __init__(self, program: Program):
        self.makers: dict[Value, Op] = {}
        self.same: dict[Value, tuple[Value, int]] = {}
        for op in program.walk():
            self.makers.update(dict.fromkeys(op.outputs, op))
            if op.regions:
                self.same.update(_across(op))

    def region(self, program: Program) -> None:
        for op in program.ops:
            for region in op.regions:
                self.region(region)
        if not any(_indexed(op) for op in program.ops):
            return
        uses: dict[Value, int] = {}
        for op in program.ops:
            for value in op.inputs:
                uses[value] = uses.get(value, 0) + 1
        for value in program.outputs:
            uses[value] = uses.get(value, 0) + 1
        ops: list[Op] = []
        for op in program.ops:
            if _indexed(op):
                while (batched := self.batched(op)) is not None:
                    made, op = batched
                    ops += made
                    self.makers[op.outputs[0]] = op
            elif op.name == "reshape" and uses[op.inputs[0]] == 1:
                split = self.split(op)
                if split is not None:
                    made, op = split
                    ops += made
                    self.makers[op.outputs[0]] = op
            ops.append(op)
        if len(ops) > len(program.ops):
            program.ops = ops
            program.drop_dead()

    # Indices that count.

    def batched(self, op: Op) -> tuple[list[Op], Op] | None:
        """The op with one more batch dimension, and the ops that make its indices; or None."""
        columns, batching, dropped = _places(op)
        if len(columns) < 2:
            return None
        operand, indices = op.inputs[:2]
        for column, dim in enumerate(columns):
            if dim not in dropped:
                continue
            along = self.counts(indices, column)
            if along is None or along in batching or indices.shape[along] != operand.shape[dim]:
                continue
            made, rest = _without(op, indices, column)
            params = {**op.params, "dimension_numbers": _with_batch(op, column, dim, along)}
            if "indices_are_sorted" in params:
                params["indices_are_sorted"] = False
            return made, op.on((operand, rest, *op.inputs[2:]), op.outputs, params)
        return None

    def counts(self, value: Value, last: int | None = None) -> int | None:
        """The dimension along which integers are 0, 1, 2, ...; of the last one's place `last`
        alone, if given; or None.
        """
        if not jnp.issubdtype(value.dtype, np.integer):
            return None
        if value.data is not None:
            return _counted(np.asarray(value.data), last)
        across = self.same.get(value)
        if across is not None:
            other, more = across
            found = self.counts(other, last)
            return None if found is None or found < more else found - more
        op = self.makers.get(value)
        return None if op is None else self._made_to_count(op, value, last)

    def _made_to_count(self, op: Op, value: Value, last: int | None) -> int | None:
        if op.regions:
            return None
        end = value.ndim - 1
        source = op.inputs[0] if op.inputs else value
        if op.name == "iota":
            dim = op.params["dimension"]
            return None if last is not None and dim == end else dim
        if op.name == "device_put":
            return self.counts(source, last)
        if op.name == "convert_element_type":
            room = np.iinfo(value.dtype).max + 1
            return self.counts(source, last) if max(value.shape, default=0) <= room else None
        if op.name == "broadcast_in_dim":
            places = op.params["broadcast_dimensions"]
            if last is not None and end in places:
                if places[-1] != end:
                    return None
                last = last if source.shape[-1] == value.shape[-1] else 0
            else:
                last = None
            dim = self.counts(source, last)
            return None if dim is None or source.shape[dim] == 1 else places[dim]
        if op.name in ("reshape", "expand_dims") and value.shape == (*source.shape, 1):
            return self.counts(source)
        if op.name == "concatenate" and last is not None and op.params["dimension"] == end:
            for piece in op.inputs:
                if last < piece.shape[-1]:
                    return self.counts(piece, last)
                last -= piece.shape[-1]
        if op.name == "select_n":  # How jax lets negative indices count from the end.
            if _is_zero(source):  # Of a constant index, jax compares at once.
                return self.counts(op.inputs[1], last)
            test = self.makers.get(source)
            if test is not None and test.name == "lt" and _is_zero(test.inputs[1]):
                # Every use of an iota has its own copy; none that counts is negative.
                asked = test.inputs[0]
                if self.counts(asked) is not None or self.counts(asked, last) is not None:
                    return self.counts(op.inputs[1], last)
        return None

    # Rows that are split after they are picked.

    def split(self, op: Op) -> tuple[list[Op], Op] | None:
        """A gather in the shape of the reshape `op` of its result, and its indices' reshape."""
        gather = self.makers.get(op.inputs[0])
        if gather is None or not traits_of(gather.name).lookup or op.params.get("dimensions"):
            return None
        numbers = gather.params["dimension_numbers"]
        picked, result, indices = gather.outputs[0], op.outputs[0], gather.inputs[1]
        more = result.ndim - picked.ndim
        count = indices.ndim - 1
        if (
            more < 1
            or numbers.operand_batching_dims
            or numbers.offset_dims != tuple(range(count, picked.ndim))
            or result.shape[count + more :] != picked.shape[count:]
            or any(
                len(dims) > 1
                for dims, _ in regrouped(picked.shape[:count], result.shape[: count + more])
            )
        ):
            return None
        shape = (*result.shape[: count + more], indices.shape[-1])
        rows = indices.like(shape)
        params = {"new_sizes": shape, "dimensions": None, "sharding": None}
        reshape = op.beside("reshape", (indices,), rows, params, lax.reshape_p)
        numbers = numbers._replace(offset_dims=tuple(d + more for d in numbers.offset_dims))
        lookup = gather.on(
            (gather.inputs[0], rows), op.outputs, {**gather.params, "dimension_numbers": numbers}
        )
        self.makers[rows] = reshape
        return [reshape], lookup


def _across(op: Op) -> dict[Value, tuple[Value, int]]:
    """Maps the inputs of an op's regions, and its results, to the values on the other side."""
    found: dict[Value, tuple[Value, int]] = {}
    if op.name == "scan":
        (body,) = op.regions
        consts, carry = op.params["num_consts"], op.params["num_carry"]
        for i, inner in enumerate(body.inputs):
            if not consts <= i < consts + carry:
                found[inner] = op.inputs[i], int(i >= consts)
        for inner, outer in zip(body.outputs[carry:], op.outputs[carry:], strict=True):
            found[outer] = inner, -1
    elif op.name == "while":
        _, body = op.regions
        first, count = op.params["cond_nconsts"], op.params["body_nconsts"]
        for i, inner in enumerate(body.inputs[:count]):
            found[inner] = op.inputs[first + i], 0
    else:
        operands = op.inputs[1:] if op.name == "cond" else op.inputs
        for region in op.regions:
            for inner, outer in zip(region.inputs, operands, strict=True):
                found[inner] = outer, 0
        if op.name == "checkpoint":
            for inner, outer in zip(op.regions[0].outputs, op.outputs, strict=True):
                found[outer] = inner, 0
    return found


def _places(op: Op) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    """The table dimension of each column of a gather's or scatter's indices, the indices' batch
    dimensions, and the table dimensions that slices or updates lack.
    """
    numbers = op.params["dimension_numbers"]
    if traits_of(op.name).lookup:
        return (
            numbers.start_index_map,
            numbers.start_indices_batching_dims,
            numbers.collapsed_slice_dims,
        )
    return (
        numbers.scatter_dims_to_operand_dims,
        numbers.scatter_indices_batching_dims,
        numbers.inserted_window_dims,
    )


def _with_batch(op: Op, column: int, dim: int, along: int) -> Any:
    """Dimension numbers without a column; its table dimension and place become a batch."""
    numbers = op.params["dimension_numbers"]
    columns, batching, dropped = _places(op)
    pairs = sorted([*zip(numbers.operand_batching_dims, batching, strict=True), (dim, along)])
    tables, places = (tuple(pair[i] for pair in pairs) for i in (0, 1))
    rest = tuple(d for i, d in enumerate(columns) if i != column)
    kept = tuple(d for d in dropped if d != dim)
    if traits_of(op.name).lookup:
        return numbers._replace(
            start_index_map=rest, collapsed_slice_dims=kept,
            operand_batching_dims=tables, start_indices_batching_dims=places,
        )  # fmt: skip
    return numbers._replace(
        scatter_dims_to_operand_dims=rest, inserted_window_dims=kept,
        operand_batching_dims=tables, scatter_indices_batching_dims=places,
    )  # fmt: skip


def _without(op: Op, indices: Value, column: int) -> tuple[list[Op], Value]:
    """Indices without one of their columns."""
    pieces: list[Value] = []
    made: list[Op] = []
    shape = indices.shape
    zeros, ones = (0,) * len(shape), (1,) * len(shape)
    for start, stop in ((0, column), (column + 1, shape[-1])):
        if stop > start:
            piece = indices.like((*shape[:-1], stop - start))
            params = {
                "start_indices": (*zeros[:-1], start),
                "limit_indices": (*shape[:-1], stop),
                "strides": ones,
            }
            made.append(op.beside("slice", (indices,), piece, params, lax.slice_p))
            pieces.append(piece)
    if len(pieces) == 1:
        return made, pieces[0]
    rest = indices.like((*shape[:-1], shape[-1] - 1))
    joined = {"dimension": len(shape) - 1}
    made.append(op.beside("concatenate", tuple(pieces), rest, joined, lax.concatenate_p))
    return made, rest


def _counted(data: np.ndarray, last: int | None) -> int | None:
    """The dimension along which an array counts, or None."""
    if last is not None:
        data = data[..., last]
    for dim, size in enumerate(data.shape):
        shape = [size if d == dim else 1 for d in range(data.ndim)]
        if np.array_equal(data, np.broadcast_to(np.arange(size).reshape(shape), data.shape)):
            return dim
    return None


def _is_zero(value: Value) -> bool:
    return value.data is not None and not np.any(value.data)
