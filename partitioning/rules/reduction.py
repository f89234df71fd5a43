"""Reductions: kept dimensions pass through, reduced ones reduce by the op's monoid."""

from __future__ import annotations

from collections.abc import Callable

from ..ir.program import Op
from .factor import Rule, RuleBuilder
from .registry import RuleOf, register

_MONOIDS = {
    "reduce_sum": "sum",
    "reduce_max": "max",
    "reduce_min": "min",
    "reduce_and": "and",
    "reduce_or": "or",
}


def _reduction(monoid: str) -> RuleOf:
    def rule(op: Op) -> Rule:
        build = RuleBuilder(op)
        axes = op.params["axes"]
        result_dim = 0
        for dim, size in enumerate(op.inputs[0].shape):
            if dim not in axes:
                build.factor(size, [(0, dim)], [(0, result_dim)])
                result_dim += 1
            # Bitwise and integer "and"/"or" have no collective; only the logical ones do.
            elif monoid and (monoid not in ("and", "or") or op.inputs[0].dtype == bool):
                build.factor(size, [(0, dim)], monoid=monoid)
        return build.rule()

    return rule


def _register() -> Callable[..., None] | None:
    for name, monoid in _MONOIDS.items():
        register(
            name, "reduction", f"kept dimensions pass through; reduced ones reduce by {monoid}"
        )(_reduction(monoid))
    register(
        ("argmax", "argmin", "reduce_prod", "reduce_xor"),
        "reduction",
        "kept dimensions pass through; reduced ones are needed whole",
    )(_reduction(""))
    return None


_register()
