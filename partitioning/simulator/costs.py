"""What one op costs: floating point operations, transcendental functions, bytes.

The counts follow the compiler's own conventions, so that totals can be held against
`compiled.cost_analysis()`: an elementwise op costs one operation per element of its result
(comparisons, selections and conversions too), a multiply-add costs two, moving data costs none,
and exponentials and their kin are counted apart.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable

from ..ir.program import Op, Program

ELEMENTWISE = frozenset(
    [
        "add",
        "sub",
        "mul",
        "div",
        "rem",
        "max",
        "min",
        "neg",
        "sign",
        "abs",
        "floor",
        "ceil",
        "round",
        "and",
        "or",
        "xor",
        "not",
        "shift_left",
        "shift_right_logical",
        "shift_right_arithmetic",
        "eq",
        "ne",
        "lt",
        "le",
        "gt",
        "ge",
        "select_n",
        "clamp",
        "square",
        "integer_pow",
        "one_minus_square",
        "convert_element_type",
        "is_finite",
        "nextafter",
        "real",
        "imag",
        "conj",
        "complex",
        "reduce_precision",
        "population_count",
        "clz",
        "copy",
        "copy_p",
        "stop_gradient",
    ]
)
TRANSCENDENTAL = frozenset(
    [
        "exp",
        "exp2",
        "log",
        "log1p",
        "expm1",
        "tanh",
        "logistic",
        "sin",
        "cos",
        "tan",
        "asin",
        "acos",
        "atan",
        "sinh",
        "cosh",
        "asinh",
        "acosh",
        "atanh",
        "erf",
        "erf_inv",
        "erfc",
        "sqrt",
        "rsqrt",
        "cbrt",
        "pow",
        "atan2",
        "lgamma",
        "digamma",
        "igamma",
        "igammac",
        "bessel_i0e",
        "bessel_i1e",
        "regularized_incomplete_beta",
        "polygamma",
        "zeta",
        "random_gamma_grad",
    ]
)
REDUCTIONS = frozenset(
    [
        "reduce_sum",
        "reduce_max",
        "reduce_min",
        "reduce_prod",
        "reduce_and",
        "reduce_or",
        "reduce_xor",
        "argmax",
        "argmin",
    ]
)
CUMULATIVE = frozenset(["cumsum", "cumprod", "cummax", "cummin", "cumlogsumexp"])
MATMULS = frozenset(["dot_general", "conv_general_dilated", "ragged_dot", "ragged_dot_general"])


@dataclasses.dataclass(frozen=True)
class Cost:
    """The cost of one run of an op."""

    flops: float = 0.0
    transcendentals: float = 0.0
    bytes_read: float = 0.0
    bytes_written: float = 0.0

    def __add__(self, other: Cost) -> Cost:
        return Cost(
            self.flops + other.flops,
            self.transcendentals + other.transcendentals,
            self.bytes_read + other.bytes_read,
            self.bytes_written + other.bytes_written,
        )

    def times(self, count: float) -> Cost:
        """The cost of running it so often."""
        return Cost(
            self.flops * count,
            self.transcendentals * count,
            self.bytes_read * count,
            self.bytes_written * count,
        )


def op_flops(op: Op) -> tuple[float, float]:
    """(floating point operations, transcendental functions) of one run of an op without regions."""
    name = op.name
    if name in ELEMENTWISE:
        return float(op.outputs[0].size * (2 if name == "one_minus_square" else 1)), 0.0
    if name in TRANSCENDENTAL:
        size = float(op.outputs[0].size)
        # The logistic function is written out as 1 / (1 + exp(-x)).
        return (3 * size, size) if name == "logistic" else (0.0, size)
    special = _SPECIAL.get(name)
    if special is not None:
        return special(op)
    if name in REDUCTIONS:
        return float(max(op.inputs[0].size - op.outputs[0].size, 0)), 0.0
    if name in CUMULATIVE:
        return float(op.inputs[0].size), 0.0
    return 0.0, 0.0


def op_cost(op: Op) -> Cost:
    """The cost of one run of an op without regions, were it a kernel of its own."""
    flops, transcendentals = op_flops(op)
    read, written = op_bytes(op)
    return Cost(flops, transcendentals, read, written)


def op_bytes(op: Op) -> tuple[float, float]:
    """(bytes read, bytes written) of an op run as a kernel of its own; views move nothing."""
    name = op.name
    if name in VIEWS:
        return 0.0, 0.0
    written = float(sum(v.nbytes for v in op.outputs))
    if name in ("slice", "dynamic_slice", "gather", "all_slice"):
        return written + sum(v.nbytes for v in op.inputs[1:]), written
    if name == "dynamic_update_slice":
        return float(op.inputs[1].nbytes), float(op.inputs[1].nbytes)
    if name.startswith("scatter"):
        update = float(op.inputs[2].nbytes)
        return 2 * update + op.inputs[1].nbytes, update
    return float(sum(v.nbytes for v in op.inputs)), written


VIEWS = frozenset(
    ["reshape", "squeeze", "expand_dims", "stop_gradient", "optimization_barrier", "name"]
)
"""Ops that only rename: their result is their operand's buffer."""


def _dot_general(op: Op) -> tuple[float, float]:
    (contracting, _), _ = op.params["dimension_numbers"]
    shape = op.inputs[0].shape
    return 2.0 * op.outputs[0].size * math.prod(shape[d] for d in contracting), 0.0


def convolution_taps(op: Op) -> list[float]:
    """For each spatial dimension, (output position, kernel position) pairs that read real input.

    Products with padding, or with the holes of a dilated input, are not counted.
    """
    dims = op.params["dimension_numbers"]
    taps = []
    for i, (lhs, rhs, out) in enumerate(
        zip(dims.lhs_spec[2:], dims.rhs_spec[2:], dims.out_spec[2:], strict=True)
    ):
        size, kernel, result = (
            op.inputs[0].shape[lhs],
            op.inputs[1].shape[rhs],
            op.outputs[0].shape[out],
        )
        stride = op.params["window_strides"][i]
        low = op.params["padding"][i][0]
        spread, hole = op.params["lhs_dilation"][i], op.params["rhs_dilation"][i]
        count = 0
        for k in range(kernel):
            start = k * hole - low
            if spread == 1:
                first = max(0, -(start // stride))
                last = (size - 1 - start) // stride
                count += max(0, min(result - 1, last) - first + 1)
            else:
                for o in range(result):
                    position = start + o * stride
                    count += 0 <= position < (size - 1) * spread + 1 and position % spread == 0
        taps.append(float(count))
    return taps


def _convolution(op: Op) -> tuple[float, float]:
    dims = op.params["dimension_numbers"]
    groups = op.params["feature_group_count"] * op.params["batch_group_count"]
    out = op.outputs[0].shape
    features = op.inputs[0].shape[dims.lhs_spec[1]]
    batch = op.inputs[0].shape[dims.lhs_spec[0]]
    return 2.0 * batch * out[dims.out_spec[1]] * (features / groups) * math.prod(
        convolution_taps(op)
    ), 0.0


def _window(op: Op) -> tuple[float, float]:
    window = math.prod(op.params.get("window_dimensions", ()))
    return float(op.outputs[0].size * max(window - 1, 1)), 0.0


def _scatter_add(op: Op) -> tuple[float, float]:
    return float(op.inputs[2].size), 0.0


def _sort(op: Op) -> tuple[float, float]:
    size, length = op.inputs[0].size, op.inputs[0].shape[op.params.get("dimension", -1)]
    return size * max(math.ceil(math.log2(max(length, 2))), 1), 0.0


def _random(op: Op) -> tuple[float, float]:
    # Threefry: 20 rounds of an addition, a rotation (three operations) and an exclusive or, plus
    # key injections, for two words at a time.
    return 72.0 * sum(v.size for v in op.outputs), 0.0


def _cholesky(op: Op) -> tuple[float, float]:
    n = op.inputs[0].shape[-1]
    return op.inputs[0].size * n / 3, 0.0


def _triangular_solve(op: Op) -> tuple[float, float]:
    return float(op.inputs[1].size * op.inputs[0].shape[-1]), 0.0


def _fft(op: Op) -> tuple[float, float]:
    size = max(v.size for v in (*op.inputs, *op.outputs))
    return 5.0 * size * math.log2(max(math.prod(op.params.get("fft_lengths", ())), 2)), 0.0


def _all_reduce(op: Op) -> tuple[float, float]:
    return float(op.inputs[0].size), 0.0


_SPECIAL: dict[str, Callable[[Op], tuple[float, float]]] = {
    "dot_general": _dot_general,
    "conv_general_dilated": _convolution,
    "reduce_window": _window,
    "reduce_window_sum": _window,
    "reduce_window_max": _window,
    "reduce_window_min": _window,
    "select_and_scatter_add": lambda op: (float(op.inputs[1].size * 2), 0.0),
    "scatter-add": _scatter_add,
    "scatter_add": _scatter_add,
    "sort": _sort,
    "top_k": _sort,
    "random_bits": _random,
    "threefry2x32": _random,
    "random_split": _random,
    "random_fold_in": _random,
    "cholesky": _cholesky,
    "triangular_solve": _triangular_solve,
    "fft": _fft,
    "all_reduce": _all_reduce,
    "reduce_scatter": _all_reduce,
}


def program_flops(program: Program, loops_once: bool = False) -> float:
    """Floating point operations of one run: loops by trip count, branches by the costliest.

    Args:
      program: global or local (then: per device).
      loops_once: count the body of a loop once, as `compiled.cost_analysis()` does.
    """
    total = 0.0
    for op in program.ops:
        if op.name == "cond":
            total += max((program_flops(r, loops_once) for r in op.regions), default=0.0)
        elif op.regions:
            times = op.params.get("length", 1) if op.name == "scan" and not loops_once else 1
            total += times * sum(program_flops(r, loops_once) for r in op.regions)
        else:
            total += op_flops(op)[0]
    return total
