"""Matrix products: batch and free dimensions pass through, contracted ones reduce by sum."""

from __future__ import annotations

from ..ir.program import Op
from .factor import Rule, RuleBuilder
from .registry import register


@register(
    "dot_general",
    "contraction",
    "batch and free dimensions pass through; contracted ones reduce by sum",
)
def dot_general(op: Op) -> Rule:
    (lhs_contract, rhs_contract), (lhs_batch, rhs_batch) = op.params["dimension_numbers"]
    lhs, rhs = op.inputs
    build = RuleBuilder(op)
    result_dim = 0
    for left, right in zip(lhs_batch, rhs_batch, strict=True):
        build.factor(lhs.shape[left], [(0, left), (1, right)], [(0, result_dim)])
        result_dim += 1
    for position, value, used in (
        (0, lhs, {*lhs_contract, *lhs_batch}),
        (1, rhs, {*rhs_contract, *rhs_batch}),
    ):
        for dim in range(value.ndim):
            if dim not in used:
                build.factor(value.shape[dim], [(position, dim)], [(0, result_dim)])
                result_dim += 1
    for left, right in zip(lhs_contract, rhs_contract, strict=True):
        build.factor(lhs.shape[left], [(0, left), (1, right)], monoid="sum")
    return build.rule()
