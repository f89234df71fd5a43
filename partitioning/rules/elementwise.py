"""Elementwise ops: every dimension passes through."""

from __future__ import annotations

from ..ir.program import Op
from .factor import WHOLE, Rule
from .registry import register

_UNARY = [
    "abs",
    "acos",
    "acosh",
    "asin",
    "asinh",
    "atan",
    "atanh",
    "bessel_i0e",
    "bessel_i1e",
    "cbrt",
    "ceil",
    "clz",
    "conj",
    "convert_element_type",
    "copy",
    "copy_p",
    "cos",
    "cosh",
    "digamma",
    "erf",
    "erf_inv",
    "erfc",
    "exp",
    "exp2",
    "expm1",
    "floor",
    "imag",
    "integer_pow",
    "is_finite",
    "lgamma",
    "log",
    "log1p",
    "logistic",
    "name",
    "neg",
    "not",
    "population_count",
    "real",
    "reduce_precision",
    "round",
    "rsqrt",
    "sharding_constraint",
    "sign",
    "sin",
    "sinh",
    "sqrt",
    "square",
    "stop_gradient",
    "tan",
    "tanh",
    "pvary",
    "layout_constraint",
    "mesh_cast",
    "reshard",
    "log2",
    "one_minus_square",
    "with_memory_space_constraint",
    "to_edtype",
    "from_edtype",
]

_MANY = [
    "add",
    "and",
    "atan2",
    "clamp",
    "complex",
    "div",
    "eq",
    "eq_to",
    "ge",
    "gt",
    "igamma",
    "igamma_grad_a",
    "igammac",
    "le",
    "le_to",
    "lt",
    "lt_to",
    "max",
    "min",
    "mul",
    "ne",
    "nextafter",
    "or",
    "polygamma",
    "pow",
    "random_gamma_grad",
    "regularized_incomplete_beta",
    "rem",
    "select_n",
    "shift_left",
    "shift_right_arithmetic",
    "shift_right_logical",
    "sub",
    "threefry2x32",
    "xor",
    "zeta",
    "mulhi",
    "threefry4x32",
    "philox2x32",
    "philox4x32",
]


@register(
    _UNARY + _MANY,
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
            operands.append(tuple(i if n == shape[i] else WHOLE for i, n in enumerate(value.shape)))
    return Rule(tuple(operands), (dims,) * len(op.outputs), shape)


@register("optimization_barrier", "elementwise", "every dimension of every operand passes through")
def barrier(op: Op) -> Rule:
    dims: list[tuple[int, ...]] = []
    sizes: list[int] = []
    for value in op.inputs:
        dims.append(tuple(range(len(sizes), len(sizes) + value.ndim)))
        sizes.extend(value.shape)
    return Rule(tuple(dims), tuple(dims), tuple(sizes))
