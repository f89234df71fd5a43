"""Elementwise ops: every dimension passes through."""

from __future__ import annotations

from ..ir.program import Op
from .factor import REPLICATED_FACTOR, Rule
from .registry import register
from .traits import TABLE

_BARRIER = "optimization_barrier"


@register(
    [name for name, traits in TABLE.items() if traits.elementwise and name != _BARRIER],
    "elementwise",
    "every dimension passes through; scalars and sizes of 1 are ignored",
)
def elementwise(op: Op) -> Rule:
    shape = op.outputs[0].shape
    dims = tuple(range(len(shape)))
    operands = []
    for value in op.inputs:
        if value.shape == shape:
            operands.append(dims)
        elif not value.shape:
            operands.append(())
        else:  # sizes of 1 are broadcast implicitly
            operands.append(
                tuple(i if n == shape[i] else REPLICATED_FACTOR for i, n in enumerate(value.shape))
            )
    return Rule(tuple(operands), (dims,) * len(op.outputs), shape)


@register(_BARRIER, "elementwise", "every dimension of every operand passes through")
def barrier(op: Op) -> Rule:
    dims: list[tuple[int, ...]] = []
    sizes: list[int] = []
    for value in op.inputs:
        dims.append(tuple(range(len(sizes), len(sizes) + value.ndim)))
        sizes.extend(value.shape)
    return Rule(tuple(dims), tuple(dims), tuple(sizes))
