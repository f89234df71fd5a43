"""Fits a device and a topology to measurements."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from .collectives import KINDS, PERMUTE
from .device import PRODUCTS, Curve, Device
from .microbench import Measurement
from .topology import Level, Measured, Topology


def fit_device(name: str, kind: str, samples: Sequence[Measurement], memory_bytes: int) -> Device:
    """Fits the device's rates and efficiencies to the samples."""
    by_kind: dict[str, list[Measurement]] = {}
    for sample in samples:
        by_kind.setdefault(sample.kind, []).append(sample)
    memory = sorted(by_kind["memory"], key=lambda s: s.nbytes)
    kernel = memory[0].seconds
    loop = by_kind["loop"][0].seconds
    rates = [s.nbytes / max(s.seconds - kernel, 0.1 * s.seconds) for s in memory[1:]]
    bandwidth = max(rates)
    curve = Curve(tuple(s.nbytes for s in memory[1:]), tuple(r / bandwidth for r in rates))
    peaks: dict[str, float] = {}
    tables: dict[str, dict[str, Curve]] = {}
    for dtype in dict.fromkeys(s.dtype for s in by_kind["matmul"]):
        measured = {
            work: sorted(
                (s for s in by_kind.get(work, ()) if s.dtype == dtype), key=lambda s: s.flops
            )
            for work in PRODUCTS
        }
        speed = {
            work: [s.flops / max(s.seconds - kernel, 0.1 * s.seconds) for s in group]
            for work, group in measured.items()
        }
        peaks[dtype] = max(max(v) for v in speed.values() if v)
        for work, group in measured.items():
            if group:
                sizes, values = _increasing(
                    [s.flops for s in group], [r / peaks[dtype] for r in speed[work]]
                )
                tables.setdefault(work, {})[dtype] = Curve(sizes, values)
    vector = by_kind["vector"][0].flops / max(by_kind["vector"][0].seconds - kernel, 1e-9)
    skew, most_skew = _skew(samples)
    exponentials = by_kind["transcendental"][0]
    each = max(exponentials.seconds - kernel, 1e-9) / exponentials.flops
    return Device(
        name=name,
        kind=kind,
        matmul_flops=peaks,
        vector_flops=vector,
        memory_bytes=memory_bytes,
        memory_bandwidth=bandwidth,
        kernel_seconds=kernel,
        step_seconds=by_kind["step"][0].seconds,
        loop_seconds=max(loop - by_kind["matmul"][0].seconds, 0.0),
        skew=skew,
        most_skew_seconds=most_skew,
        alone=_alone(by_kind),
        result_seconds=_per_result(by_kind.get("results", ())),
        efficiency=tables,
        transposed_seconds=_per_transposed(by_kind),
        memory_efficiency=curve,
        transcendental_flops=each * vector,
        sources={"all": "measured by calibrate()"},
    )


def _per_result(samples: Sequence[Measurement]) -> float:
    """Seconds that one more returned array takes."""
    if len(samples) < 2:
        return 0.0
    few, many = min(samples, key=lambda s: s.size), max(samples, key=lambda s: s.size)
    return max(many.seconds - few.seconds, 0.0) / (many.size[0] - few.size[0])


def _alone(by_kind: Mapping[str, Sequence[Measurement]]) -> float:
    """Returns the factor by which one device multiplies faster while the others are idle."""
    for one in by_kind.get("alone", ()):
        for all_at_once in by_kind["matmul"]:
            if (one.dtype, one.size) == (all_at_once.dtype, all_at_once.size):
                return max(all_at_once.seconds / one.seconds, 1.0)
    return 1.0


def _per_transposed(by_kind: Mapping[str, Sequence[Measurement]]) -> Curve | None:
    """Seconds more for each element of a right operand that lies transposed."""
    straight = {s.size: s.seconds for s in by_kind.get("straight", ())}
    points = [
        (float(s.size[1]), max(s.seconds - straight[s.size], 1e-15) / (s.size[1] * s.size[2]))
        for s in by_kind.get("transposed", ())
    ]
    return Curve(*map(tuple, zip(*sorted(points), strict=True))) if points else None


def _skew(samples: Sequence[Measurement]) -> tuple[float, float]:
    """(fraction of the work, most seconds) that devices wait for the last one in a collective.

    What meeting costs beyond the cheapest collective of all devices: in proportion to the work
    where there is little, no longer where there is much. Waits scatter, so that medians and the sum
    of distances are taken.
    """
    apart = {s.size: s.seconds for s in samples if s.kind == "apart"}
    together = {s.size: s.seconds for s in samples if s.kind == "together"}
    if not together:
        return 0.0, 0.0
    of_all = max(s.size for s in samples if s.kind == "all_reduce")
    bare = min(s.seconds for s in samples if s.kind == "all_reduce" and s.size == of_all)
    points = sorted((apart[n], max(together[n] - apart[n] - bare, 0.0)) for n in together)
    work, waits = np.array(points).T
    most = float(np.median(waits[len(waits) // 2 :]))

    def distance(skew: float) -> float:
        return float(np.abs(np.minimum(skew * work, most) - waits).sum())

    return min((waits / work).tolist(), key=distance), most


def _increasing(
    sizes: list[float], values: list[float]
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Points of a curve; of equal sizes the better one."""
    best: dict[float, float] = {}
    for size, value in zip(sizes, values, strict=True):
        best[size] = max(value, best.get(size, 0.0))
    ordered = sorted(best.items())
    return tuple(s for s, _ in ordered), tuple(v for _, v in ordered)


def fit_topology(samples: Sequence[Measurement], count: int) -> Topology:
    """One level with the collectives that were measured; latency and bandwidth meet the reductions
    of all devices.
    """
    measured = tuple(
        Measured(s.kind, s.size[0], s.nbytes, s.seconds)
        for s in samples
        if s.kind in (*KINDS, PERMUTE)
    )
    reduces = [m for m in measured if m.kind == "all_reduce" and m.group == count]
    if not reduces:
        return Topology((Level("all", max(count, 1), 1e12, 0.0, source="one device"),))
    # Weighted least squares on relative errors: seconds = a + b * bytes.
    size = np.array([m.nbytes for m in reduces])
    seconds = np.array([m.seconds for m in reduces])
    design = np.stack([np.ones_like(size), size], 1) / seconds[:, None]
    (fixed, slope), *_ = np.linalg.lstsq(design, np.ones_like(size), rcond=None)
    fixed, slope = max(fixed, float(seconds.min()) * 0.1), max(slope, 1e-15)
    steps = 2 * (count - 1)  # of a ring
    level = Level(
        "all",
        count,
        bandwidth=float(2 * (count - 1) / count / slope),
        latency=float(fixed / steps),
        source="measured by calibrate()",
        measured=measured,
    )
    return Topology((level,))
