"""The cost of one op: floating point operations, transcendental functions, bytes.

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
from ..rules.traits import Flops, traits_of


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
    return _FLOPS[traits_of(op.name).flops](op)


def op_cost(op: Op) -> Cost:
    """The cost of one run of an op without regions, were it a kernel of its own."""
    flops, transcendentals = op_flops(op)
    read, written = op_bytes(op)
    return Cost(flops, transcendentals, read, written)


def op_bytes(op: Op) -> tuple[float, float]:
    """(bytes read, bytes written) of an op run as a kernel of its own; views move nothing."""
    traits = traits_of(op.name)
    if traits.view == "always":
        return 0.0, 0.0
    if traits.traffic == "update":
        return float(op.inputs[1].nbytes), float(op.inputs[1].nbytes)
    if traits.traffic == "scatter":
        update = float(op.inputs[2].nbytes)
        return 2 * update + op.inputs[1].nbytes, update
    written = float(sum(v.nbytes for v in op.outputs))
    if traits.traffic == "part":
        return written + sum(v.nbytes for v in op.inputs[1:]), written
    return float(sum(v.nbytes for v in op.inputs)), written


def _size(op: Op) -> float:
    return float(op.outputs[0].size)


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


#: (floating point operations, transcendental functions) by the trait "flops".
_FLOPS: dict[Flops, Callable[[Op], tuple[float, float]]] = {
    "all_reduce": lambda op: (float(op.inputs[0].size), 0.0),
    "cholesky": _cholesky,
    "convolution": _convolution,
    "cumulative": lambda op: (float(op.inputs[0].size), 0.0),
    "division": lambda op: (_size(op), 0.0),
    "element": lambda op: (_size(op), 0.0),
    "fft": _fft,
    # The logistic function is written out as 1 / (1 + exp(-x)).
    "logistic": lambda op: (3 * _size(op), _size(op)),
    "matmul": _dot_general,
    "none": lambda op: (0.0, 0.0),
    "random": _random,
    "reduction": lambda op: (float(max(op.inputs[0].size - op.outputs[0].size, 0)), 0.0),
    "scatter": lambda op: (float(op.inputs[2].size), 0.0),
    "select_and_scatter": lambda op: (float(op.inputs[1].size * 2), 0.0),
    "sort": _sort,
    "transcendental": lambda op: (0.0, _size(op)),
    "triangular_solve": _triangular_solve,
    "two": lambda op: (2 * _size(op), 0.0),
    "uncounted": lambda op: (0.0, 0.0),
    "window": _window,
}


#: Kind of device to what jax calls its platforms.
_PLATFORMS = {"cpu": ("cpu",), "gpu": ("gpu", "cuda", "rocm"), "tpu": ("tpu",)}


def platform_branch(op: Op, kind: str) -> Program | None:
    """Of branches that differ by platform the one for a kind of device; None if they do not."""
    platforms = op.params.get("branches_platforms")
    if platforms is None:
        return None
    for region, names in zip(op.regions, platforms, strict=True):
        if names is None or not set(names).isdisjoint(_PLATFORMS[kind]):
            return region
    return None


def program_flops(program: Program, loops_once: bool = False, kind: str = "cpu") -> float:
    """Floating point operations of one run: loops by trip count, branches by the costliest.

    Args:
      program: global or local (then: per device).
      loops_once: count the body of a loop once, as `compiled.cost_analysis()` does.
      kind: the device's kind, which decides branches that differ by platform.
    """
    total = 0.0
    for op in program.ops:
        if op.name == "cond":  # its regions are alternatives
            taken = platform_branch(op, kind)
            regions = op.regions if taken is None else (taken,)
            total += max((program_flops(r, loops_once, kind) for r in regions), default=0.0)
        elif op.regions:
            times = 1 if loops_once else op.trips
            total += times * sum(program_flops(r, loops_once, kind) for r in op.regions)
        else:
            total += op_flops(op)[0]
    return total
