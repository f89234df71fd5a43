"""Measures the machine at hand, so that predictions of it rest on figures rather than on
datasheets.

Everything is measured on all given devices at once (a step of a partitioned program runs on all of
them, and the virtual devices of a CPU share its cores and its memory), as the best of several runs.
"""

from __future__ import annotations

import dataclasses
import json
import math
import os
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from .device import Curve, Device
from .topology import Level, Topology


@dataclasses.dataclass(frozen=True)
class Sample:
    """One measured kernel or collective."""

    kind: str
    """"matmul", "convolution", "memory", "vector", "transcendental", "step", "loop", "all_reduce",
    "all_gather"."""
    dtype: str
    size: tuple[int, ...]
    """Shape parameters; for memory and collectives the bytes moved."""
    flops: float
    nbytes: float
    seconds: float


@dataclasses.dataclass(frozen=True)
class Calibration:
    """What was measured, and the device and topology that follow from it."""

    device: Device
    topology: Topology
    samples: tuple[Sample, ...]

    def to_json(self) -> dict[str, Any]:
        """Device, topology and the raw samples."""
        return {
            "device": self.device.to_json(),
            "topology": {"levels": [dataclasses.asdict(level) for level in self.topology.levels]},
            "samples": [dataclasses.asdict(s) for s in self.samples],
        }

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes it as JSON; `--device` reads such a file."""
        with open(path, "w", encoding="utf-8") as file:
            json.dump(self.to_json(), file, indent=1)


def calibrate(
    devices: Sequence[Any] | None = None,
    dtypes: Sequence[str] | None = None,
    repeats: int = 5,
    thorough: bool | None = None,
) -> Calibration:
    """Measures rates, overheads and links of the devices at hand. Takes about a minute on a CPU.

    Args:
      devices: jax devices, by default all; all are kept busy at once.
      dtypes: of matrix products and convolutions; by default float32, and bfloat16 on accelerators.
      repeats: how many runs of each measurement; the best counts.
      thorough: more and larger sizes; by default on accelerators only.
    """
    devices = list(devices if devices is not None else jax.devices())
    platform = devices[0].platform
    kind = {"gpu": "gpu", "cuda": "gpu", "rocm": "gpu", "tpu": "tpu"}.get(platform, "cpu")
    thorough = kind != "cpu" if thorough is None else thorough
    dtypes = tuple(dtypes or (("float32", "bfloat16") if kind != "cpu" else ("float32",)))
    bench = _Bench(devices, repeats)
    samples = [bench.step()]
    bench.step_seconds = samples[0].seconds
    samples.append(bench.loop())
    for size in _geometric(1 << 10, 1 << (30 if thorough else 24), 4):
        samples.append(bench.memory(size))
    samples.append(bench.vector(1 << (22 if thorough else 14)))
    samples.append(bench.transcendental(1 << (22 if thorough else 14)))
    for dtype in dtypes:
        for n in (
            (8, 64, 128, 256, 512, 1024, 2048, 4096, 8192)
            if thorough
            else (4, 16, 32, 64, 128, 256, 512)
        ):
            samples.append(bench.matmul(dtype, n, n, n))
        for case in _CONVOLUTIONS_LARGE if thorough else _CONVOLUTIONS_SMALL:
            samples.append(bench.convolution(dtype, *case))
    if len(devices) > 1:
        for collective in ("all_reduce", "all_gather"):
            for size in _geometric(1 << 10, 1 << (26 if thorough else 22), 16):
                samples.append(bench.collective(collective, size))
    name = f"calibrated-{devices[0].device_kind.lower().replace(' ', '-')}"
    device = fit_device(name, kind, samples, _memory_of(devices[0], len(devices)))
    return Calibration(device, fit_topology(samples, len(devices)), tuple(samples))


_CONVOLUTIONS_SMALL = (
    (4, 8, 4, 4, 3),
    (4, 16, 8, 8, 3),
    (8, 16, 16, 16, 3),
    (8, 32, 16, 32, 3),
    (16, 32, 32, 32, 3),
)
_CONVOLUTIONS_LARGE = (
    (16, 16, 16, 32, 3),
    (32, 32, 32, 64, 3),
    (64, 32, 64, 128, 3),
    (128, 56, 64, 64, 3),
    (128, 28, 128, 128, 3),
    (256, 14, 256, 256, 3),
    (256, 56, 256, 256, 3),
)


def _geometric(first: int, last: int, factor: int) -> Iterable[int]:
    size = first
    while size <= last:
        yield size
        size *= factor


class _Bench:
    """Times functions that run on all devices at once, each on data of its own."""

    def __init__(self, devices: list[Any], repeats: int):
        self.mesh = Mesh(np.array(devices), ("all",))
        self.count = len(devices)
        self.repeats = repeats
        self.step_seconds = 0.0
        self.work = 4e9 if devices[0].platform == "cpu" else 2e13

    def run(self, body: Callable[..., Any], shapes: Sequence[tuple[tuple[int, ...], str]]) -> float:
        """Seconds of one call of `body` on every device; arguments have a leading axis of one."""
        from jax.sharding import PartitionSpec as P

        specs = tuple(P("all") for _ in shapes)
        mapped = _shard_map(body, self.mesh, specs, P("all"))
        step = jax.jit(mapped)
        args = []
        for shape, dtype in shapes:
            # A product with such a matrix keeps the size of what it multiplies.
            value = np.random.default_rng(0).standard_normal((1, *shape), np.float32)
            value /= math.sqrt(shape[0]) if len(shape) > 1 else 10.0
            tiled = jnp.asarray(np.broadcast_to(value, (self.count, *shape)), dtype)
            args.append(jax.device_put(tiled, NamedSharding(self.mesh, PartitionSpec("all"))))
        jax.block_until_ready(step(*args))
        best = math.inf
        spent = 0.0
        for _ in range(self.repeats * 4):
            start = time.perf_counter()
            jax.block_until_ready(step(*args))
            took = time.perf_counter() - start
            best = min(best, took)
            spent += took
            if spent > 0.5:
                break
        return best

    def net(self, seconds: float, times: int) -> float:
        return max(seconds - self.step_seconds, 0.05 * seconds) / times

    def step(self) -> Sample:
        return Sample("step", "float32", (1,), 0, 4, self.run(lambda x: x + 1, [((1,), "float32")]))

    def loop(self) -> Sample:
        times = 500

        def body(x: Any) -> Any:
            return lax.fori_loop(
                0, times, lambda i, y: lax.dot(y, x[0], precision="highest"), x[0]
            )[None]

        seconds = self.run(body, [((4, 4), "float32")])
        return Sample("loop", "float32", (times,), 0, 0, self.net(seconds, times))

    def vector(self, count: int) -> Sample:
        """One fused kernel that multiplies and adds many times per element."""
        times = 64

        def body(x: Any) -> Any:
            for _ in range(times):
                x = x * 1.0001 + 0.5
            return x

        seconds = self.run(body, [((count,), "float32")])
        return Sample(
            "vector", "float32", (count,), 2.0 * times * count, 8.0 * count, self.net(seconds, 1)
        )

    def transcendental(self, count: int) -> Sample:
        """One fused kernel that takes exponentials."""
        times = 16

        def body(x: Any) -> Any:
            for _ in range(times):
                x = jnp.exp(x) - 1.0
            return x

        seconds = self.run(body, [((count,), "float32")])
        return Sample(
            "transcendental",
            "float32",
            (count,),
            float(times * count),
            8.0 * count,
            self.net(seconds, 1),
        )

    def memory(self, size: int) -> Sample:
        """A chain of kernels that read and write `size` bytes in all."""
        times = max(2, min(64, (1 << 26) // size))

        def body(x: Any) -> Any:
            for i in range(times):
                # The barrier keeps the turns apart, so that each reads and writes memory.
                x = lax.optimization_barrier(_flip(x) if i % 2 else _flip(x) + 1.0)
            return x

        seconds = self.run(body, [((size // 8,), "float32")])
        return Sample("memory", "float32", (size,), size / 4, float(size), self.net(seconds, times))

    def matmul(self, dtype: str, m: int, k: int, n: int) -> Sample:
        flops = 2.0 * m * k * n
        times = max(2, min(64, int(self.work / flops))) if n == k else 1

        def body(x: Any, y: Any) -> Any:
            z = x[0]
            for _ in range(times):
                z = lax.dot(z, y[0])
            return z[None]

        seconds = self.run(body, [((m, k), dtype), ((k, n), dtype)])
        nbytes = float((m * k + k * n + m * n) * jnp.dtype(dtype).itemsize)
        return Sample("matmul", dtype, (m, k, n), flops, nbytes, self.net(seconds, times))

    def convolution(
        self, dtype: str, batch: int, image: int, features: int, out: int, window: int
    ) -> Sample:
        flops = 2.0 * batch * image * image * features * out * window * window

        def body(x: Any, w: Any) -> Any:
            y = lax.conv_general_dilated(
                x[0], w[0], (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
            )
            return y[None]

        seconds = self.run(
            body,
            [((batch, image, image, features), dtype), ((window, window, features, out), dtype)],
        )
        nbytes = float(batch * image * image * (features + out) * jnp.dtype(dtype).itemsize)
        shape = (batch, image, features, out, window)
        return Sample("convolution", dtype, shape, flops, nbytes, self.net(seconds, 1))

    def collective(self, kind: str, size: int) -> Sample:
        times = 4

        def reduce(x: Any) -> Any:
            for _ in range(times):
                x = lax.psum(x, "all") * 0.5
            return x

        def gather(x: Any) -> Any:
            for _ in range(times):
                y = lax.all_gather(x[0], "all", tiled=True)
                x = y[: x.shape[1]][None] * 0.5
            return x

        if kind == "all_reduce":
            seconds = self.run(reduce, [((size // 4,), "float32")])
        else:
            seconds = self.run(gather, [((size // 4 // self.count,), "float32")])
        return Sample(kind, "float32", (size,), 0, float(size), self.net(seconds, times))


def _flip(x: Any) -> Any:
    """Reads backwards: neither a view nor free to merge with its neighbours."""
    return lax.rev(x, (1,))


def _shard_map(
    body: Callable[..., Any], mesh: Mesh, in_specs: Any, out_specs: Any
) -> Callable[..., Any]:
    return jax.shard_map(body, mesh=mesh, in_specs=in_specs, out_specs=out_specs, check_vma=False)


def _memory_of(device: Any, count: int) -> int:
    try:
        stats = device.memory_stats()
    except Exception:  # some back ends have none and say so by raising
        stats = None
    if stats and "bytes_limit" in stats:
        return int(stats["bytes_limit"])
    return int(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // count)


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
    tables: dict[str, dict[str, Curve]] = {"matmul": {}, "convolution": {}}
    for dtype in dict.fromkeys(s.dtype for s in by_kind["matmul"]):
        measured = {
            work: sorted((s for s in by_kind[work] if s.dtype == dtype), key=lambda s: s.flops)
            for work in ("matmul", "convolution")
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
