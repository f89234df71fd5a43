"""Random numbers: a device makes its own part, with the values that the whole run has there.

jax's default generator makes each number from the key and the number's place alone (where
`jax_threefry_partitionable` is on, as it is unless switched off), so that any part can be had
without the rest. Of other generators the whole is made on every device, then sliced.
"""

from __future__ import annotations

import jax

from ..ir.program import Op, Value
from .factor import Axes, LocalWriter, Rule, RuleBuilder
from .registry import register, without_rule

without_rule(
    "rng_bit_generator rng_uniform",
    "computed whole from the whole key, then sliced, so that values do not depend on the mesh",
)
without_rule("random_gamma iota_2x32_shape", "computed whole")

#: The dtypes of keys that are independent in a batch; others draw a batch from its first key.
_BATCHED = {
    "random_bits": ("key<fry>",),
    "random_split": ("key<fry>", "key<rbg>"),
    "random_fold_in": ("key<fry>", "key<rbg>"),
}


@register(
    "random_wrap random_unwrap random_fold_in random_clone random_seed",
    "random",
    "the dimensions of a batch of keys pass through; the words of a key are needed whole",
)
def keys(op: Op) -> Rule:
    build = RuleBuilder(op)
    if op.name in _BATCHED and op.inputs[0].dtype.name not in _BATCHED[op.name]:
        return build.rule()
    # Keys have one dimension less than their words; a scalar operand serves every key.
    ranks = [v.ndim for v in (*op.inputs, *op.outputs) if v.ndim]
    for dim in range(min(ranks) if op.outputs[0].ndim and ranks else 0):
        size = op.outputs[0].shape[dim]
        operands = [(i, dim) for i, v in enumerate(op.inputs) if v.ndim and v.shape[dim] == size]
        build.factor(size, operands, [(0, dim)])
    return build.rule()


@register(
    "random_bits random_split",
    "random",
    "the dimensions of a batch of keys pass through; those drawn tile, each device drawing its "
    "own part (the whole, where the generator needs it)",
)
def drawn(op: Op) -> Rule:
    build = RuleBuilder(op)
    (key,), (result,) = op.inputs, op.outputs
    if key.dtype.name in _BATCHED[op.name]:
        for dim, size in enumerate(key.shape):
            build.factor(size, [(0, dim)], [(0, dim)])
    if key.dtype.name == "key<fry>":
        for dim in range(key.ndim, result.ndim):
            build.factor(result.shape[dim], [], [(0, dim)], special=True)
    return build.rule(None, _expand_drawn)


def _expand_drawn(emit: LocalWriter, op: Op, operands: list[Value], axes: Axes) -> list[Value]:
    (layout,), batch = emit.result_layouts(op, axes), op.inputs[0].ndim
    parts = layout[batch:]
    if jax.config.jax_threefry_partitionable:  # type: ignore[attr-defined]
        params = {**op.params, "parts": parts}
        return [emit.placed(op, "random_part", operands[0], layout, params)]
    whole = emit.placed(op, op.name, operands[0], layout[:batch] + ((),) * len(parts), op.params)
    return [emit.placed(op, "all_slice", whole, layout, {"slices": ((),) * batch + parts})]
