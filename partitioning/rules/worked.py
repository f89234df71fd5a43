"""Ops that work along some dimensions: the others pass through, the worked ones are needed
whole.
"""

from __future__ import annotations

from ..ir.program import Op
from .factor import Rule, RuleBuilder
from .registry import register


def _batch(op: Op, worked: set[int]) -> Rule:
    """Dimensions not worked pass through every value that has them alike."""
    build = RuleBuilder(op)
    for dim, size in enumerate(op.inputs[0].shape):
        operands = [
            (i, dim) for i, v in enumerate(op.inputs) if v.ndim > dim and v.shape[dim] == size
        ]
        results = [
            (i, dim) for i, v in enumerate(op.outputs) if v.ndim > dim and v.shape[dim] == size
        ]
        if dim not in worked:
            build.factor(size, operands, results)
            continue
        for i, _ in operands:
            build.spread(i, dim, results)
    return build.rule()


@register("sort", "worked", "other dimensions pass through; the sorted one is needed whole")
def sort(op: Op) -> Rule:
    return _batch(op, {op.params["dimension"]})


@register(
    "cumsum cumprod cummax cummin cumlogsumexp",
    "worked",
    "other dimensions pass through; the accumulated one is needed whole",
)
def cumulative(op: Op) -> Rule:
    return _batch(op, {op.params["axis"]})


@register(
    "top_k approx_top_k",
    "worked",
    "other dimensions pass through; the searched one is needed whole",
)
def top_k(op: Op) -> Rule:
    last = op.inputs[0].ndim - 1
    return _batch(
        op, {op.params.get("axis", op.params.get("reduction_dimension", last)) % (last + 1)}
    )


@register("fft", "worked", "batch dimensions pass through; transformed ones are needed whole")
def fft(op: Op) -> Rule:
    rank = op.inputs[0].ndim
    return _batch(op, set(range(rank - len(op.params["fft_lengths"]), rank)))


@register(
    "cholesky triangular_solve lu qr geqrf geqp3 householder_product svd eigh eig schur hessenberg "
    "tridiagonal tridiagonal_solve lu_pivots_to_permutation cholesky_update symmetric_product",
    "worked",
    "batch dimensions pass through; the matrices are needed whole",
)
def linear_algebra(op: Op) -> Rule:
    rank = op.inputs[0].ndim
    # A vector per batch element stands where others have a matrix.
    matrix = 1 if op.name in ("tridiagonal_solve", "lu_pivots_to_permutation") else 2
    return _batch(op, set(range(max(rank - matrix, 0), rank)))
