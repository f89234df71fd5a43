"""Random numbers: keys are needed whole, and a tiled result has the values of the whole run."""

from __future__ import annotations

from ..ir.program import Op
from .factor import Rule, RuleBuilder
from .registry import register, without_rule

without_rule(
    "random_bits random_split rng_bit_generator rng_uniform",
    "computed whole from the whole key, then sliced, so that values do not depend on the mesh",
)
without_rule("random_gamma iota_2x32_shape", "computed whole")


@register(
    "random_wrap random_unwrap random_fold_in random_clone random_seed",
    "random",
    "the dimensions of a batch of keys pass through; the words of a key are needed whole",
)
def keys(op: Op) -> Rule:
    build = RuleBuilder(op)
    # Keys have one dimension less than their words; a scalar operand serves every key.
    ranks = [v.ndim for v in (*op.inputs, *op.outputs) if v.ndim]
    for dim in range(min(ranks) if op.outputs[0].ndim and ranks else 0):
        size = op.outputs[0].shape[dim]
        operands = [(i, dim) for i, v in enumerate(op.inputs) if v.ndim and v.shape[dim] == size]
        build.factor(size, operands, [(0, dim)])
    return build.rule()
