"""Checks a local program: every value is made once and before it is read, and layouts and shapes
agree.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import jax
import numpy as np

from ..rules.traits import traits_of
from .program import COLLECTIVES, Layout, Op, Program, Value


class VerificationError(AssertionError):
    """A local program that is not well formed: a bug of the partitioner, not of its user."""


def verify(
    program: Program, mesh: Mapping[str, int], types: bool = False, inner: bool = False
) -> None:
    """Checks a local program.

    Args:
      program: the program, with its regions.
      mesh: sizes of axes.
      inner: True for the region of an op; its results may leave the same sums pending as the op's.
      types: also checks every op's result types against jax's own typing of its local operands,
        which takes about as long as tracing.

    Raises:
      VerificationError: naming the op, its source line and what does not agree.
    """
    known: set[Value] = set(program.inputs) | set(program.constants)
    for op in program.ops:
        for value in op.inputs:
            if value not in known and value.data is None:
                _fail(op, f"reads {value} before it is made")
            if value.partial is not None and not _commutes(op) and not _pads(op):
                _fail(op, f"reads {value}, which still owes a reduction over {value.partial[0]}")
        for value in op.outputs:
            if value in known:
                _fail(op, f"makes {value} a second time")
            known.add(value)
        if op.name in COLLECTIVES or op.name == "all_slice":
            _check_move(op, mesh)
        elif op.regions:
            _check_regions(op)
        elif types and op.primitive is not None:
            _check_types(op)
        for region in op.regions:
            verify(region, mesh, types, inner=True)
    for value in program.outputs:
        if value not in known and value.data is None:
            raise VerificationError(f"the program returns {value}, which nothing makes")
        if value.partial is not None and not inner:
            raise VerificationError(
                f"the program returns {value}, which owes a reduction over {value.partial[0]}"
            )


def _commutes(op: Op) -> bool:
    """True if an op may read a value with a pending reduction."""
    traits = traits_of(op.name)
    return bool(traits.linear or traits.signs) or op.name in COLLECTIVES


def _pads(op: Op) -> bool:
    """True if an op adds zeros around an array, which sums leave as they are."""
    at = traits_of(op.name).surrounds
    return at >= 0 and op.inputs[at].data is not None and not np.any(op.inputs[at].data)


def _fail(op: Op, text: str) -> None:
    where = f" at {op.source}" if op.source else ""
    raise VerificationError(f"{op.name}{where} {text}\n  {op!r}")


def _global(value: Value, mesh: Mapping[str, int]) -> tuple[int, ...]:
    assert value.layout is not None
    return tuple(
        n * math.prod(mesh[a] for a in axes)
        for n, axes in zip(value.shape, value.layout, strict=True)
    )


def _check_move(op: Op, mesh: Mapping[str, int]) -> None:
    (source,), (result,) = op.inputs, op.outputs
    if source.layout is None or result.layout is None:
        _fail(op, "has a value without a layout")
    assert source.layout is not None
    assert result.layout is not None
    if _global(source, mesh) != _global(result, mesh):
        _fail(
            op, f"changes the global shape from {_global(source, mesh)} to {_global(result, mesh)}"
        )
    used = [a for axes in result.layout for a in axes]
    if len(used) != len(set(used)):
        _fail(op, f"tiles an axis twice: {result.layout}")
    expected = _after(op, source.layout)
    if expected != result.layout:
        _fail(op, f"leads from {source.layout} to {expected}, not to {result.layout}")
    if op.name in ("all_reduce", "reduce_scatter"):
        owed, monoid = _owed(source)
        if not set(op.params["axes"]).issubset(owed) or monoid != op.params["monoid"]:
            _fail(op, f"reduces over {op.params['axes']}, but its operand owes {source.partial}")


def _after(op: Op, layout: Layout) -> Layout:
    """The layout that a slice or collective leads to."""
    dims = list(layout)
    params = op.params
    if op.name == "all_slice":
        return tuple(old + new for old, new in zip(dims, params["slices"], strict=True))
    axes = params.get("axes", ())
    if op.name == "all_gather":
        dim = params["dim"]
        if dims[dim][len(dims[dim]) - len(axes) :] != axes:
            _fail(op, f"gathers {axes}, which are not the minor axes of {dims[dim]}")
        dims[dim] = dims[dim][: len(dims[dim]) - len(axes)]
    elif op.name == "reduce_scatter":
        dims[params["dim"]] += axes
    elif op.name == "all_to_all":
        source = params["concat_dim"]
        dims[source] = dims[source][: len(dims[source]) - len(axes)]
        dims[params["split_dim"]] += axes
    return tuple(dims)


def _owed(value: Value) -> tuple[list[str], str]:
    """The axes of a pending reduction, whose order means nothing, by name; and its monoid."""
    axes, monoid = value.partial or ((), "")
    return sorted(axes), monoid


def _check_regions(op: Op) -> None:
    turns = op.params.get("turns", ())
    for region in op.regions[1:] if op.name == "while" else op.regions:
        for i, (inner, outer) in enumerate(zip(region.outputs, op.outputs, strict=True)):
            owed = _owed(inner)
            if turns and i < op.params["num_carry"] and outer.partial:
                # What the turns of other devices add is owed outside alone.
                owed = (sorted((*owed[0], *turns)), owed[1] or "sum")
            if owed != _owed(outer):
                _fail(op, f"owes {outer.partial} outside and {inner.partial} inside")
    if op.name == "scan":
        (body,) = op.regions
        stacked = op.params["num_consts"] + op.params["num_carry"]
        carry = op.params["num_carry"]
        for i, (outer, inner) in enumerate(zip(op.inputs, body.inputs, strict=True)):
            _same(op, outer, inner, 1 if i >= stacked else 0, turns)
        for i, (inner, outer) in enumerate(zip(body.outputs, op.outputs, strict=True)):
            _same(op, outer, inner, 1 if i >= carry else 0, turns)
        carries = body.inputs[stacked - carry : stacked]
        for before, after in zip(carries, body.outputs[:carry], strict=True):
            _same(op, before, after, 0)
    elif op.name == "while":
        cond, body = op.regions
        for before, after in zip(
            body.inputs[op.params["body_nconsts"] :], body.outputs, strict=True
        ):
            _same(op, before, after, 0)
        for before, after in zip(
            cond.inputs[op.params["cond_nconsts"] :], body.outputs, strict=True
        ):
            _same(op, before, after, 0)
    else:
        skip = 1 if op.name == "cond" else 0
        for region in op.regions:
            for outer, inner in zip(op.inputs[skip:], region.inputs, strict=True):
                _same(op, outer, inner, 0)
            for inner, outer in zip(region.outputs, op.outputs, strict=True):
                _same(op, outer, inner, 0)


def _same(op: Op, outer: Value, inner: Value, skip: int, leading: tuple[str, ...] = ()) -> None:
    """Fails where two values differ in more than `skip` leading dimensions, tiled as told."""
    layout = outer.layout or ((),) * outer.ndim
    inside = inner.layout or ((),) * inner.ndim
    if outer.shape[skip:] != inner.shape or outer.dtype != inner.dtype:
        _fail(op, f"has {outer.type_text()} outside and {inner.type_text()} inside")
    if layout[skip:] != inside or any(axes != leading for axes in layout[:skip]):
        _fail(op, f"has layout {layout} outside and {inside} inside")


def _check_types(op: Op) -> None:
    avals = [jax.core.ShapedArray(v.shape, v.dtype, weak_type=v.weak_type) for v in op.inputs]
    try:
        result, _ = op.primitive.abstract_eval(*avals, **op.params)
    except Exception as error:  # jax raises what it likes; the op is the news
        _fail(op, f"does not type: {error}")
    results = result if op.primitive.multiple_results else [result]
    for value, aval in zip(op.outputs, results, strict=True):
        if value.shape != aval.shape or value.dtype != aval.dtype:
            _fail(op, f"makes {value.type_text()}, where jax says {aval.str_short()}")
