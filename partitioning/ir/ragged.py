"""Writes products of ragged groups as masked ones, whose dimensions can be split.

A ragged product knows where its groups begin only as it runs, so that no device can tell its part.
XLA for CPU and GPU computes it as a product over all groups of rows that are zero outside of their
own; so written, rows, features and groups split as of any product. On TPU there is a kernel that
does less, and this is not called.
"""

from __future__ import annotations

import functools
from typing import Any

import jax.numpy as jnp
from jax import lax

from .program import Op, Program
from .trace import written

_NAME = "ragged_dot_general"


def write_ragged(program: Program) -> None:
    """Rewrites the ragged products of a program and its regions, in place."""
    ops: list[Op] = []
    for op in program.ops:
        for region in op.regions:
            write_ragged(region)
        groups = op.inputs[2] if op.name == _NAME else None
        if groups is None or groups.ndim != 1 or op.params.get("group_offset") is not None:
            ops.append(op)
            continue
        product = functools.partial(masked_product, **_options(op.params))
        scope, source = op.prefix, op.source_info
        (result,) = written(ops, product, *op.inputs[:3], scope=scope, source=source)
        # The op that made it makes what others read.
        maker = next(made for made in reversed(ops) if result in made.outputs)
        maker.outputs = op.outputs
    program.ops = ops


def _options(params: dict[str, Any]) -> dict[str, Any]:
    return {
        "numbers": params["ragged_dot_dimension_numbers"],
        "precision": params["precision"],
        "preferred_element_type": params["preferred_element_type"],
    }


def masked_product(lhs: Any, rhs: Any, group_sizes: Any, *, numbers: Any, **options: Any) -> Any:
    """A ragged product as a product with masks.

    Args:
      lhs: with a ragged dimension, in which the rows of the groups follow one another.
      rhs: with a dimension of groups G, or without where the ragged one is contracted.
      group_sizes: integers [G].
      numbers: of `jax.lax.ragged_dot_general`.
      **options: of `jax.lax.dot_general`.
    """
    (contracted, others), (batch, other_batch) = numbers.dot_dimension_numbers
    (ragged,) = numbers.lhs_ragged_dimensions
    if ragged in batch:
        return lax.dot_general(lhs, rhs, numbers.dot_dimension_numbers, **options)
    left = _by_group(lhs, ragged, group_sizes)

    def later(dims: Any) -> list[int]:
        return [dim + 1 for dim in dims]

    if ragged in contracted:
        along = others[contracted.index(ragged)]
        right = _by_group(rhs, along, group_sizes)
        dims = (later(contracted), later(others)), ([0, *later(batch)], [0, *later(other_batch)])
        return lax.dot_general(left, right, dims, **options)
    (group,) = numbers.rhs_group_dimensions
    dims = ([*later(contracted), 0], [*others, group]), (later(batch), [*other_batch])
    return lax.dot_general(left, rhs, dims, **options)


def _by_group(x: Any, dim: int, group_sizes: Any) -> Any:
    """[G, ...]: for each group an array in which the rows of the others are zero."""
    ends = jnp.cumsum(group_sizes)
    rows = lax.broadcasted_iota(group_sizes.dtype, (len(group_sizes), x.shape[dim]), 1)
    mask = ((ends - group_sizes)[:, None] <= rows) & (rows < ends[:, None])
    shape = [1] * x.ndim
    shape[dim] = x.shape[dim]
    wide = mask.reshape(len(group_sizes), *shape)
    return jnp.where(wide, x[None], jnp.zeros((), x.dtype))
