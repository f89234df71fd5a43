"""Gathers, scatters and dynamic slices."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from ..ir.program import Op, Value
from .factor import Axes, LocalWriter, Rule, RuleBuilder
from .registry import register

_SCATTERS = {
    "scatter-add": "sum",
    "scatter-sub": "sum",
    "scatter-max": "max",
    "scatter-min": "min",
    "scatter-mul": "",
    "scatter": "",
}


@register("dynamic_slice", "indexing", "dimensions that are kept in full pass through")
def dynamic_slice(op: Op) -> Rule:
    build = RuleBuilder(op)
    for dim, size in enumerate(op.outputs[0].shape):
        if op.inputs[0].shape[dim] == size:
            build.factor(size, [(0, dim)], [(0, dim)])
        else:
            build.spread(0, dim, [(0, dim)])
    return build.rule(lambda params, ins, outs: {**params, "slice_sizes": outs[0]})


@register("dynamic_update_slice", "indexing", "dimensions that are replaced in full pass through")
def dynamic_update_slice(op: Op) -> Rule:
    build = RuleBuilder(op)
    for dim, size in enumerate(op.outputs[0].shape):
        if op.inputs[1].shape[dim] == size:
            build.factor(size, [(0, dim), (1, dim)], [(0, dim)])
        else:
            build.spread(0, dim, [(0, dim)])
            build.spread(1, dim, [(0, dim)])
    return build.rule()


@register(
    "gather",
    "indexing",
    "batch and offset dimensions pass through; one looked-up table dimension reduces by sum",
)
def gather(op: Op) -> Rule:
    build = RuleBuilder(op)
    operand, indices = op.inputs
    numbers, sizes = op.params["dimension_numbers"], op.params["slice_sizes"]
    result_batch = [d for d in range(op.outputs[0].ndim) if d not in numbers.offset_dims]
    batched = dict(
        zip(numbers.start_indices_batching_dims, numbers.operand_batching_dims, strict=True)
    )
    for dim, result_dim in enumerate(result_batch):
        carriers = [(1, dim)] + ([(0, batched[dim])] if dim in batched else [])
        build.factor(indices.shape[dim], carriers, [(0, result_dim)])
    dropped = {*numbers.collapsed_slice_dims, *numbers.operand_batching_dims}
    offsets = iter(numbers.offset_dims)
    for dim, size in enumerate(operand.shape):
        if dim in dropped:
            continue
        result_dim = next(offsets)
        if sizes[dim] == size:
            build.factor(size, [(0, dim)], [(0, result_dim)])
    for dim in numbers.collapsed_slice_dims:
        if dim in numbers.start_index_map and _summable(operand.dtype) and operand.shape[dim] > 1:
            build.factor(operand.shape[dim], [(0, dim)], monoid="sum", special=True)
        if dim in numbers.start_index_map:
            build.spread(0, dim, [(0, d) for d in result_batch])

    def localize(params: Mapping[str, Any], ins: Any, outs: Any) -> dict[str, Any]:
        local = [ins[0][d] if sizes[d] == n else sizes[d] for d, n in enumerate(operand.shape)]
        return {**params, "slice_sizes": tuple(local)}

    return build.rule(localize, _expand_gather)


def _summable(dtype: Any) -> bool:
    return jnp.issubdtype(dtype, np.number)


def _expand_gather(emit: LocalWriter, op: Op, operands: list[Value], axes: Axes) -> list[Value]:
    """Every shard looks up the rows it holds and gives zero for the others."""
    rule = emit.rule(op)
    numbers = op.params["dimension_numbers"]
    fills = op.params["mode"] == lax.GatherScatterMode.FILL_OR_DROP
    table = {
        d: axes[f] for d, f in enumerate(rule.operands[0]) if f in rule.special and axes.get(f)
    }
    starts = [emit.offset(table[d], operands[0].shape[d]) for d in table]
    layouts = emit.result_layouts(op, axes)
    shape = emit.local_shape(op.outputs[0].shape, layouts[0])
    assert rule.localize is not None
    params = rule.localize({**op.params}, [v.shape for v in operands], [shape])
    columns = {dim: numbers.start_index_map.index(dim) for dim in table}
    sizes = {dim: op.inputs[0].shape[dim] for dim in table}

    def look_up(operand: jax.Array, indices: jax.Array, *starts: jax.Array) -> jax.Array:
        mine = jnp.ones(indices.shape[:-1], bool)
        outside = jnp.zeros(indices.shape[:-1], bool)
        signed = (
            indices if jnp.issubdtype(indices.dtype, np.signedinteger) else indices.astype(np.int32)
        )
        for dim, start in zip(table, starts, strict=True):
            column = columns[dim]
            row = signed[..., column]
            outside |= (row < 0) | (row >= sizes[dim])
            row = jnp.clip(row, 0, sizes[dim] - 1) - start.astype(signed.dtype)
            mine &= (row >= 0) & (row < operand.shape[dim])
            signed = signed.at[..., column].set(jnp.clip(row, 0, operand.shape[dim] - 1))
        (found,) = _bind(op, params, operand, signed)
        kept = [d for d in range(found.ndim) if d not in numbers.offset_dims]
        expand = [d for d in range(found.ndim) if d in numbers.offset_dims]
        if fills:
            first = sum((start != 0).astype(np.int32) for start in starts) == 0
            blank = jnp.where(first, _fill(op, found.dtype), jnp.zeros((), found.dtype))
            mine &= ~outside
            rest = jnp.where(jnp.expand_dims(outside, expand), blank, jnp.zeros((), found.dtype))
        else:
            rest = jnp.zeros((), found.dtype)
        assert len(kept) == mine.ndim
        return jnp.where(jnp.expand_dims(mine, expand), found, rest)

    return emit.function(op, look_up, [*operands, *starts], layouts)


def _fill(op: Op, dtype: Any) -> Any:
    """The value of jax's gather for an index outside the array, in mode "fill"."""
    if op.params["fill_value"] is not None:
        return jnp.asarray(op.params["fill_value"], dtype)
    if jnp.issubdtype(dtype, np.inexact):
        return jnp.asarray(np.nan, dtype)
    return jnp.asarray(
        jnp.iinfo(dtype).min if jnp.issubdtype(dtype, np.signedinteger) else jnp.iinfo(dtype).max
    )


def _bind(op: Op, params: Mapping[str, Any], *operands: jax.Array) -> tuple[jax.Array, ...]:
    result = op.primitive.bind(*operands, **params)
    return tuple(result) if op.primitive.multiple_results else (result,)


@register(
    tuple(_SCATTERS),
    "indexing",
    "batch and window dimensions pass through; an indexed dimension tiles by offset; scattered "
    "updates reduce (scatter-add, -max, -min)",
)
def scatter(op: Op) -> Rule:
    build = RuleBuilder(op)
    operand, indices, updates = op.inputs
    numbers = op.params["dimension_numbers"]
    monoid = _SCATTERS[op.name]
    batched = dict(
        zip(numbers.scatter_indices_batching_dims, numbers.operand_batching_dims, strict=True)
    )
    update_batch = [d for d in range(updates.ndim) if d not in numbers.update_window_dims]
    for dim, update_dim in enumerate(update_batch):
        if dim in batched:
            carriers = [(0, batched[dim]), (1, dim), (2, update_dim)]
            build.factor(indices.shape[dim], carriers, [(0, batched[dim])])
        elif monoid and _summable(operand.dtype):
            build.factor(
                indices.shape[dim],
                [(1, dim), (2, update_dim)],
                monoid=monoid,
                special=monoid == "sum",
            )
            picked = [d for d in numbers.inserted_window_dims if operand.shape[d] > 1]
            if len(picked) > 1:  # Slots of experts; one alone is the gradient of a table.
                build.spread(2, update_dim, [(0, d) for d in picked])
    dropped = {*numbers.inserted_window_dims, *numbers.operand_batching_dims}
    windows = iter(numbers.update_window_dims)
    for dim, size in enumerate(operand.shape):
        if dim in dropped:
            continue
        update_dim = next(windows)
        if updates.shape[update_dim] == size:
            build.factor(size, [(0, dim), (2, update_dim)], [(0, dim)])
    for dim in numbers.inserted_window_dims:
        if dim in numbers.scatter_dims_to_operand_dims and operand.shape[dim] > 1:
            build.factor(operand.shape[dim], [(0, dim)], [(0, dim)], special=True)
    return build.rule(None, _expand_scatter)


def _expand_scatter(emit: LocalWriter, op: Op, operands: list[Value], axes: Axes) -> list[Value]:
    """Every shard drops the updates of rows it does not hold; one of those that sum keeps the
    operand.
    """
    rule = emit.rule(op)
    numbers = op.params["dimension_numbers"]
    tiled = {d: axes[f] for d, f in enumerate(rule.results[0]) if f in rule.special and axes.get(f)}
    summed = tuple(a for f in rule.monoids if f in rule.special for a in axes.get(f, ()))
    offsets = [emit.offset(tiled[d], operands[0].shape[d]) for d in tiled]
    # The operand must be counted once; zeros may be counted as often as one likes.
    masked = bool(summed) and not emit.is_zero(op.inputs[0])
    ranks = [emit.offset(summed, 1)] if masked else []
    clips = op.params["mode"] != lax.GatherScatterMode.FILL_OR_DROP
    sizes = {d: op.inputs[0].shape[d] for d in tiled}
    params = {**op.params, "indices_are_sorted": False}
    if tiled:
        params["mode"] = lax.GatherScatterMode.FILL_OR_DROP

    def add(
        operand: jax.Array, indices: jax.Array, updates: jax.Array, *rest: jax.Array
    ) -> jax.Array:
        starts, rank = rest[: len(tiled)], rest[len(tiled) :]
        if rank:
            operand = jnp.where(rank[0] == 0, operand, jnp.zeros((), operand.dtype))
        if tiled and not jnp.issubdtype(indices.dtype, np.signedinteger):
            indices = indices.astype(np.int32)
        for dim, start in zip(tiled, starts, strict=True):
            column = numbers.scatter_dims_to_operand_dims.index(dim)
            row = indices[..., column]
            row = jnp.clip(row, 0, sizes[dim] - 1) if clips else row
            row = row - start.astype(indices.dtype)
            outside = (row < 0) | (row >= operand.shape[dim])
            indices = indices.at[..., column].set(jnp.where(outside, operand.shape[dim], row))
        (result,) = _bind(op, params, operand, indices, updates)
        return result

    return emit.function(op, add, [*operands, *offsets, *ranks], emit.result_layouts(op, axes))
