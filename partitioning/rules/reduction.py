"""Reductions: kept dimensions pass through, reduced ones reduce by the op's monoid."""

from __future__ import annotations

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


_KEPT = "kept dimensions pass through; reduced ones "
for _name, _monoid in _MONOIDS.items():
    register(_name, "reduction", f"{_KEPT}reduce by {_monoid}")(_reduction(_monoid))
register("argmax argmin reduce_prod reduce_xor", "reduction", f"{_KEPT}are needed whole")(
    _reduction("")
)
