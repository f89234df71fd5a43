"""Ops that rearrange dimensions: reshape, transpose, broadcasting, slices and joins."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np
from jax import lax

from ..ir.program import Op, Value
from .factor import Axes, LocalWriter, Rule, RuleBuilder
from .registry import register

_Shapes = list[tuple[int, ...]]


@register("transpose", "shape", "permuted dimensions pass through")
def transpose(op: Op) -> Rule:
    build = RuleBuilder(op)
    for result_dim, dim in enumerate(op.params["permutation"]):
        build.factor(op.inputs[0].shape[dim], [(0, dim)], [(0, result_dim)])
    return build.rule()


@register("squeeze", "shape", "kept dimensions pass through")
def squeeze(op: Op) -> Rule:
    build = RuleBuilder(op)
    dropped = {d % op.inputs[0].ndim for d in op.params["dimensions"]}
    kept = [d for d in range(op.inputs[0].ndim) if d not in dropped]
    for result_dim, dim in enumerate(kept):
        build.factor(op.inputs[0].shape[dim], [(0, dim)], [(0, result_dim)])
    return build.rule()


@register("expand_dims", "shape", "kept dimensions pass through")
def expand_dims(op: Op) -> Rule:
    build = RuleBuilder(op)
    added = {d % op.outputs[0].ndim for d in op.params["dimensions"]}
    kept = [d for d in range(op.outputs[0].ndim) if d not in added]
    for dim, result_dim in enumerate(kept):
        build.factor(op.inputs[0].shape[dim], [(0, dim)], [(0, result_dim)])
    return build.rule()


@register(
    "broadcast_in_dim",
    "shape",
    "mapped dimensions pass through; new ones are factors of the result alone",
)
def broadcast_in_dim(op: Op) -> Rule:
    build = RuleBuilder(op)
    shape = op.outputs[0].shape
    mapped = {result_dim: dim for dim, result_dim in enumerate(op.params["broadcast_dimensions"])}
    for result_dim, size in enumerate(shape):
        dim = mapped.get(result_dim)
        if dim is None or op.inputs[0].shape[dim] != size:
            build.factor(size, [], [(0, result_dim)])
        else:
            build.factor(size, [(0, dim)], [(0, result_dim)])
    return build.rule(lambda params, ins, outs: {**params, "shape": outs[0]})


@register(
    "reshape",
    "shape",
    "dimensions of equal products align; the major part of a split or merged one passes through",
)
def reshape(op: Op) -> Rule:
    build = RuleBuilder(op)
    shape = op.inputs[0].shape
    # A gradient of a grouped convolution transposes within its reshape.
    order = op.params.get("dimensions") or tuple(range(len(shape)))
    for size, dim, result_dim in aligned_blocks(
        tuple(shape[d] for d in order), op.outputs[0].shape
    ):
        build.factor(size, [(0, order[dim])], [(0, result_dim)])
    for dims, result_dims in regrouped(tuple(shape[d] for d in order), op.outputs[0].shape):
        for dim in dims:
            build.spread(0, order[dim], [(0, d) for d in result_dims])
    return build.rule(lambda params, ins, outs: {**params, "new_sizes": outs[0]})


def aligned_blocks(source: tuple[int, ...], target: tuple[int, ...]) -> list[tuple[int, int, int]]:
    """Finds dimensions of two shapes of equal size that start at the same element and step alike.

    Returns:
      Triples (size, source dim, target dim): the common major part of the two dimensions that begin
      at an equal product. [6, 4] and [2, 12] give [(2, 0, 0)]; [2, 3, 4] and [6, 4] give [(2, 0,
      0), (4, 2, 1)].
    """
    if 0 in source:
        return []
    found = []
    i = j = 0
    left = right = 1  # elements before dimension i, and before dimension j
    while i < len(source) and j < len(target):
        if source[i] == 1:
            i += 1
        elif target[j] == 1:
            j += 1
        elif left == right:
            size = math.gcd(source[i], target[j])
            if size > 1:
                found.append((size, i, j))
            left, right = left * source[i], right * target[j]
            i, j = i + 1, j + 1
        elif left < right:
            left *= source[i]
            i += 1
        else:
            right *= target[j]
            j += 1
    return found


def regrouped(
    source: tuple[int, ...], target: tuple[int, ...]
) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    """The smallest runs of dimensions that hold the same elements, where they are split or merged.

    Returns:
      Pairs (dims of source, dims of target), without dimensions of size 1. [6, 4, 5] and [2, 12, 5]
      give [((0, 1), (0, 1))].
    """
    if 0 in source:
        return []
    found = []
    i = j = 0
    while i < len(source) and j < len(target):
        left, right = source[i], target[j]
        dims, result_dims = [i], [j]
        i, j = i + 1, j + 1
        while left != right:
            if left < right:
                left *= source[i]
                dims.append(i)
                i += 1
            else:
                right *= target[j]
                result_dims.append(j)
                j += 1
        dims = [d for d in dims if source[d] > 1]
        result_dims = [d for d in result_dims if target[d] > 1]
        if len(dims) + len(result_dims) > 2:
            found.append((tuple(dims), tuple(result_dims)))
    return found


def _untouched(op: Op, touched: set[int]) -> RuleBuilder:
    """Dimensions not in `touched` pass through all operands and results of equal rank."""
    build = RuleBuilder(op)
    rank = op.outputs[0].ndim
    operands = [i for i, v in enumerate(op.inputs) if v.ndim == rank]
    for dim in range(rank):
        results = [(i, dim) for i in range(len(op.outputs))]
        if dim not in touched:
            build.factor(op.outputs[0].shape[dim], [(i, dim) for i in operands], results)
        else:
            for i in operands:
                build.spread(i, dim, results)
    return build


@register("concatenate", "shape", "other dimensions pass through; the joined one is needed whole")
def concatenate(op: Op) -> Rule:
    return _untouched(op, {op.params["dimension"]}).rule()


@register("pad", "shape", "dimensions that are not padded pass through")
def pad(op: Op) -> Rule:
    touched = {
        d for d, config in enumerate(op.params["padding_config"]) if tuple(config) != (0, 0, 0)
    }
    build = RuleBuilder(op)
    for dim, size in enumerate(op.outputs[0].shape):
        if dim not in touched:
            build.factor(size, [(0, dim)], [(0, dim)])
        else:
            build.spread(0, dim, [(0, dim)])
    return build.rule()


def _localize_slice(params: Mapping[str, Any], ins: _Shapes, outs: _Shapes) -> dict[str, Any]:
    limits = list(params["limit_indices"])
    strides = params["strides"] or (1,) * len(limits)
    for dim, start in enumerate(params["start_indices"]):
        if start == 0 and strides[dim] == 1 and ins[0][dim] == outs[0][dim]:
            limits[dim] = ins[0][dim]
    return {**params, "limit_indices": tuple(limits)}


@register("slice", "shape", "dimensions that are kept in full pass through")
def slice_(op: Op) -> Rule:
    source, target = op.inputs[0].shape, op.outputs[0].shape
    return _untouched(op, {d for d, n in enumerate(source) if target[d] != n}).rule(_localize_slice)


@register("rev", "shape", "dimensions that are not reversed pass through")
def rev(op: Op) -> Rule:
    return _untouched(op, set(op.params["dimensions"])).rule()


@register("split", "shape", "other dimensions pass through; the split one is needed whole")
def split(op: Op) -> Rule:
    return _untouched(op, {op.params["axis"]}).rule()


@register("unstack", "shape", "other dimensions pass through; the unstacked one is needed whole")
def unstack(op: Op) -> Rule:
    build = RuleBuilder(op)
    axis = op.params["axis"]
    kept = [d for d in range(op.inputs[0].ndim) if d != axis]
    for result_dim, dim in enumerate(kept):
        build.factor(
            op.inputs[0].shape[dim], [(0, dim)], [(i, result_dim) for i in range(len(op.outputs))]
        )
    return build.rule()


@register("stack", "shape", "the stacked dimensions pass through; the new one is needed whole")
def stack(op: Op) -> Rule:
    build = RuleBuilder(op)
    axis = op.params["axis"]
    for dim, size in enumerate(op.inputs[0].shape):
        result_dim = dim if dim < axis else dim + 1
        build.factor(size, [(i, dim) for i in range(len(op.inputs))], [(0, result_dim)])
    return build.rule()


@register("tile", "shape", "dimensions that are not repeated pass through")
def tile(op: Op) -> Rule:
    source, target = op.inputs[0].shape, op.outputs[0].shape
    return _untouched(op, {d for d, n in enumerate(source) if target[d] != n}).rule()


@register(
    "bitcast_convert_type",
    "shape",
    "every dimension passes through, but one that is split or joined",
)
def bitcast(op: Op) -> Rule:
    build = RuleBuilder(op)
    source, target = op.inputs[0].shape, op.outputs[0].shape
    for dim in range(min(len(source), len(target))):
        if source[dim] == target[dim]:
            build.factor(source[dim], [(0, dim)], [(0, dim)])
    return build.rule()


@register("iota", "shape", "every dimension tiles; the counted one by offset")
def iota(op: Op) -> Rule:
    build = RuleBuilder(op)
    for dim, size in enumerate(op.outputs[0].shape):
        build.factor(size, [], [(0, dim)], special=dim == op.params["dimension"])
    return build.rule(lambda params, ins, outs: {**params, "shape": outs[0]}, _expand_iota)


def _expand_iota(emit: LocalWriter, op: Op, operands: list[Value], axes: Axes) -> list[Value]:
    dim, (result,) = op.params["dimension"], op.outputs
    layout = tuple(axes.get(d, ()) for d in range(result.ndim))
    shape = emit.local_shape(result.shape, layout)
    start = emit.offset(axes[dim], shape[dim])

    def counted(start: jax.Array) -> jax.Array:
        # Counting in integers keeps narrow float types exact beyond the first shard.
        return (lax.broadcasted_iota(np.int32, shape, dim) + start).astype(result.dtype)

    return emit.function(op, counted, [start], [layout])
