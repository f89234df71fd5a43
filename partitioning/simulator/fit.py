"""From measurements to a device and a topology whose predictions meet them."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from .device import Curve, Device
from .microbench import Sample
from .topology import Level, Topology


def fit_device(name: str, kind: str, samples: Sequence[Sample], memory_bytes: int) -> Device:
    """The device whose predictions meet the samples."""
    by_kind: dict[str, list[Sample]] = {}
    for sample in samples:
        by_kind.setdefault(sample.kind, []).append(sample)
    memory = sorted(by_kind["memory"], key=lambda s: s.nbytes)
    kernel = memory[0].seconds
    loop = by_kind["loop"][0].seconds
    rates = [s.nbytes / max(s.seconds - kernel, 0.1 * s.seconds) for s in memory[1:]]
    bandwidth = max(rates)
    curve = Curve(tuple(s.nbytes for s in memory[1:]), tuple(r / bandwidth for r in rates))
    peaks: dict[str, float] = {}
    kinds = ("matmul", "convolution", "grouped_convolution")
    tables: dict[str, dict[str, Curve]] = {work: {} for work in kinds}
    for dtype in dict.fromkeys(s.dtype for s in by_kind["matmul"]):
        measured = {
            work: sorted(
                (s for s in by_kind.get(work, ()) if s.dtype == dtype), key=lambda s: s.flops
            )
            for work in kinds
        }
        speed = {
            work: [s.flops / max(s.seconds - kernel, 0.1 * s.seconds) for s in group]
            for work, group in measured.items()
        }
        peaks[dtype] = max(max(v) for v in speed.values() if v)
        for work, group in measured.items():
            if group:
                sizes, fractions = _increasing(
                    [s.flops for s in group], [r / peaks[dtype] for r in speed[work]]
                )
                tables[work][dtype] = Curve(sizes, fractions)
    vector = by_kind["vector"][0].flops / max(by_kind["vector"][0].seconds - kernel, 1e-9)
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
        collective_seconds=0.0,
        matmul_efficiency=tables["matmul"],
        convolution_efficiency=tables["convolution"],
        grouped_convolution_efficiency=tables["grouped_convolution"],
        memory_efficiency=curve,
        transcendental_flops=each * vector,
        sources={"all": "measured by calibrate()"},
    )


def _increasing(
    sizes: list[float], values: list[float]
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Points of a curve; of equal sizes the better one."""
    best: dict[float, float] = {}
    for size, value in zip(sizes, values, strict=False):
        best[size] = max(value, best.get(size, 0.0))
    ordered = sorted(best.items())
    return tuple(s for s, _ in ordered), tuple(v for _, v in ordered)


def fit_topology(samples: Sequence[Sample], count: int) -> Topology:
    """One level whose latency and bandwidth meet the collectives that were measured."""
    reduces = [s for s in samples if s.kind == "all_reduce"]
    if not reduces:
        return Topology((Level("all", max(count, 1), 1e12, 0.0, source="one device"),))
    # Weighted least squares on relative errors: seconds = a + b * bytes.
    size = np.array([s.nbytes for s in reduces])
    seconds = np.array([s.seconds for s in reduces])
    design = np.stack([np.ones_like(size), size], 1) / seconds[:, None]
    (fixed, slope), *_ = np.linalg.lstsq(design, np.ones_like(size), rcond=None)
    fixed, slope = max(fixed, float(seconds.min()) * 0.1), max(slope, 1e-15)
    steps = 2 * math.ceil(math.log2(count))
    beta = 2 * (count - 1) / count / slope
    return Topology(
        (Level("all", count, float(beta), float(fixed / steps), source="measured by calibrate()"),)
    )
