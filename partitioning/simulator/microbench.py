"""What calibration measures: kernels, collectives and overheads, on all devices at once."""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec


@dataclasses.dataclass(frozen=True)
class Sample:
    """One measured kernel or collective."""

    kind: str
    """"matmul", "convolution", "grouped_convolution", "memory", "vector", "transcendental", "step",
    "loop", "all_reduce", "all_gather"."""
    dtype: str
    size: tuple[int, ...]
    """Shape parameters; for memory and collectives the bytes moved."""
    flops: float
    nbytes: float
    seconds: float


class Bench:
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
        """A kernel that reads and writes `size` bytes in all, in place, as often as a loop turns.

        In a loop, because compilers make one kernel of a chain of such, barriers or not.
        """
        times = max(8, min(2048, (1 << 27) // size))

        def body(x: Any) -> Any:
            return lax.fori_loop(0, times, lambda i, y: y * 0.5 + 1.0, x)

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
        self,
        dtype: str,
        batch: int,
        image: int,
        features: int,
        out: int,
        window: int,
        groups: int = 1,
    ) -> Sample:
        """One convolution; in groups, which some compilers have other kernels for."""
        inputs = features // groups
        flops = 2.0 * batch * image * image * inputs * out * window * window

        def body(x: Any, w: Any) -> Any:
            y = lax.conv_general_dilated(
                x[0],
                w[0],
                (1, 1),
                "SAME",
                dimension_numbers=("NHWC", "HWIO", "NHWC"),
                feature_group_count=groups,
            )
            return y[None]

        seconds = self.run(
            body,
            [((batch, image, image, features), dtype), ((window, window, inputs, out), dtype)],
        )
        nbytes = float(batch * image * image * (features + out) * jnp.dtype(dtype).itemsize)
        shape = (batch, image, features, out, window)
        kind = "convolution" if groups == 1 else "grouped_convolution"
        return Sample(kind, dtype, shape, flops, nbytes, self.net(seconds, 1))

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


def _shard_map(
    body: Callable[..., Any], mesh: Mesh, in_specs: Any, out_specs: Any
) -> Callable[..., Any]:
    return jax.shard_map(body, mesh=mesh, in_specs=in_specs, out_specs=out_specs, check_vma=False)
