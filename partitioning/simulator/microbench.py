"""The measurements of a calibration: kernels, collectives and overheads, on all devices at once."""

from __future__ import annotations

import dataclasses
import math
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

_ALL = ("outer", "inner")
#: Sizes of the products that one device does alone, and all at once.
_OF_ALL = 128, 128, 128


@dataclasses.dataclass(frozen=True)
class Measurement:
    """One measured kernel or collective.

    Attributes:
      kind: what was measured: the name of one of the methods of `Bench`, or of the variant it ran.
      dtype: of the operands.
      size: shape parameters; of memory the bytes moved, of a collective its group.
      flops: floating point operations in all.
      nbytes: bytes moved.
      seconds: how long one run took.
    """

    kind: str
    dtype: str
    size: tuple[int, ...]
    flops: float
    nbytes: float
    seconds: float


class Bench:
    """Times functions that run on all devices at once, each on data of its own.

    The devices may be those of several processes, which then all run the same measurements.
    """

    def __init__(self, devices: list[Any], repeats: int):
        self.devices = np.array(devices)
        self.count = len(devices)
        self.repeats = repeats
        self.step_seconds = 0.0
        self.work = 4e9 if devices[0].platform == "cpu" else 2e13

    def run(
        self,
        body: Callable[..., Any],
        shapes: Sequence[tuple[tuple[int, ...], str]],
        group: int = 1,
        of: Callable[[Sequence[float]], float] = min,
    ) -> float:
        """Seconds of one call of `body` on every device; arguments have a leading axis of one.

        In the body, the axis "inner" joins groups of so many devices, and both axes of `_ALL` all.
        The least of several calls is what the devices can do; where they wait for each other, as
        more devices than cores do, only `of` all calls says what to expect.
        """
        mesh = Mesh(self.devices.reshape(-1, group), _ALL)
        spec = PartitionSpec(_ALL)
        mapped = jax.shard_map(
            body, mesh=mesh, in_specs=(spec,) * len(shapes), out_specs=spec, check_vma=False
        )
        step = jax.jit(mapped)
        args = []
        for shape, dtype in shapes:
            # A product with such a matrix keeps the size of what it multiplies.
            value = np.random.default_rng(0).standard_normal((1, *shape), np.float32)
            value /= math.sqrt(shape[0]) if len(shape) > 1 else 10.0
            tiled = np.broadcast_to(value.astype(jnp.dtype(dtype)), (self.count, *shape))
            args.append(
                jax.make_array_from_callback(
                    tiled.shape, NamedSharding(mesh, spec), tiled.__getitem__
                )
            )
        jax.block_until_ready(step(*args))
        took: list[float] = []
        alone = jax.process_count() == 1  # several processes have to stop after the same run
        for _ in range(self.repeats * (4 if alone else 1)):
            start = time.perf_counter()
            jax.block_until_ready(step(*args))
            took.append(time.perf_counter() - start)
            if alone and sum(took) > 0.5:
                break
        return of(took)

    def net(self, seconds: float, times: int) -> float:
        return max(seconds - self.step_seconds, 0.05 * seconds) / times

    def step(self) -> Measurement:
        return Measurement(
            "step", "float32", (1,), 0, 4, self.run(lambda x: x + 1, [((1,), "float32")])
        )

    def loop(self) -> Measurement:
        times = 500

        def body(x: Any) -> Any:
            return lax.fori_loop(
                0, times, lambda i, y: lax.dot(y, x[0], precision="highest"), x[0]
            )[None]

        seconds = self.run(body, [((4, 4), "float32")])
        return Measurement("loop", "float32", (times,), 0, 0, self.net(seconds, times))

    def vector(self, count: int) -> Measurement:
        """One fused kernel that multiplies and adds many times per element."""
        times = 64

        def body(x: Any) -> Any:
            for _ in range(times):
                x = x * 1.0001 + 0.5
            return x

        seconds = self.run(body, [((count,), "float32")])
        return Measurement(
            "vector", "float32", (count,), 2.0 * times * count, 8.0 * count, self.net(seconds, 1)
        )

    def transcendental(self, count: int) -> Measurement:
        """One fused kernel that takes exponentials."""
        times = 16

        def body(x: Any) -> Any:
            for _ in range(times):
                x = jnp.exp(x) - 1.0
            return x

        seconds = self.run(body, [((count,), "float32")])
        return Measurement(
            "transcendental",
            "float32",
            (count,),
            float(times * count),
            8.0 * count,
            self.net(seconds, 1),
        )

    def memory(self, size: int) -> Measurement:
        """A kernel that reads and writes `size` bytes in all, in place, as often as a loop turns.

        In a loop, because compilers make one kernel of a chain of such, barriers or not.
        """
        times = max(8, min(2048, (1 << 27) // size))

        def body(x: Any) -> Any:
            return lax.fori_loop(0, times, lambda i, y: y * 0.5 + 1.0, x)

        seconds = self.run(body, [((size // 8,), "float32")])
        return Measurement(
            "memory", "float32", (size,), size / 4, float(size), self.net(seconds, times)
        )

    def matmul(self, dtype: str, m: int, k: int, n: int) -> Measurement:
        flops = 2.0 * m * k * n
        times = max(2, min(64, int(self.work / flops))) if n == k else 1

        def body(x: Any, y: Any) -> Any:
            z = x[0]
            for _ in range(times):
                z = lax.dot(z, y[0])
            return z[None]

        seconds = self.run(body, [((m, k), dtype), ((k, n), dtype)])
        nbytes = float((m * k + k * n + m * n) * jnp.dtype(dtype).itemsize)
        return Measurement("matmul", dtype, (m, k, n), flops, nbytes, self.net(seconds, times))

    def straight(self, k: int, transposed: bool) -> Measurement:
        """A product with few rows; its right operand may lie transposed: [256, k]."""
        times, m, n = 16, 64, 256

        def body(x: Any, y: Any) -> Any:
            x, z = x[0], y[0]
            for i in range(times):
                z = lax.dot_general(x, y[0], (((1,), (1 if transposed else 0,)), ((), ())))
                x = lax.dynamic_update_slice(x, 1e-3 * z[:1, :1], (i, 0))
            return z[None]

        right = (n, k) if transposed else (k, n)
        seconds = self.net(self.run(body, [((m, k), "float32"), (right, "float32")]), times)
        kind = "transposed" if transposed else "straight"
        return Measurement(kind, "float32", (m, k, n), 2.0 * m * k * n, 0, seconds)

    def alone(self) -> Measurement:
        """The same products on one device while the others are idle."""
        bench = Bench(list(self.devices[:1]), self.repeats)
        bench.step_seconds = bench.step().seconds
        return dataclasses.replace(bench.matmul("float32", *_OF_ALL), kind="alone")

    def convolution(
        self,
        dtype: str,
        batch: int,
        image: int,
        features: int,
        out: int,
        window: int,
        groups: int = 1,
        gradient: bool = False,
    ) -> Measurement:
        """A convolution or the gradient of its weights; in groups, which some compilers have other
        kernels for.
        """
        inputs = features // groups
        flops = 2.0 * batch * image * image * inputs * out * window * window

        def forward(x: Any, w: Any) -> Any:
            return lax.conv_general_dilated(
                x,
                w,
                (1, 1),
                "SAME",
                dimension_numbers=("NHWC", "HWIO", "NHWC"),
                feature_group_count=groups,
            )

        def body(x: Any, w: Any, y: Any) -> Any:
            if gradient:
                return jax.vjp(lambda w: forward(x[0], w), w[0])[1](y[0])[0][None]
            return forward(x[0], w[0])[None]

        shapes = (
            (batch, image, image, features),
            (window, window, inputs, out),
            (batch, image, image, out),
        )
        seconds = self.run(body, [(shape, dtype) for shape in shapes])
        nbytes = float(batch * image * image * (features + out) * jnp.dtype(dtype).itemsize)
        shape = (batch, image, features, out, window)
        kind = "weight_gradient" if gradient else "convolution"
        if groups > 1:
            kind = f"grouped_{kind}"
        return Measurement(kind, dtype, shape, flops, nbytes, self.net(seconds, 1))

    def results(self, count: int) -> Measurement:
        """A call that returns so many small arrays."""

        def body(*xs: Any) -> Any:
            return tuple(x + 1 for x in xs)

        seconds = self.run(body, [((1,), "float32")] * count)
        return Measurement("results", "float32", (count,), 0, 0, self.net(seconds, 1))

    def collective(self, kind: str, size: int, group: int, times: int = 8) -> Measurement:
        """A collective in groups of so many devices, all groups at once; the median of calls.

        Args:
          kind: "all_reduce", "all_gather", "reduce_scatter", "all_to_all" or "permute", which sends
            an array to the next device.
          size: bytes of the gathered result, or of the operand of the others.
          group: how many devices take part in each; divides the number of devices.
          times: how many run one after another in one call.
        """
        length = size // 4 // group * group

        def send(x: Any) -> Any:
            if kind == "all_reduce":
                return lax.psum(x, "inner")
            if kind == "all_gather":
                return lax.all_gather(x, "inner", tiled=True)
            if kind == "reduce_scatter":
                return lax.psum_scatter(x, "inner", tiled=True)
            if kind == "permute":
                return lax.ppermute(x, "inner", [(i, (i + 1) % group) for i in range(group)])
            return lax.all_to_all(x.reshape(group, -1), "inner", 0, 0, tiled=True).ravel()

        def body(*xs: Any) -> Any:
            # Each of an array that no cache holds, and one after another.
            last = jnp.zeros(1)
            for x in xs:
                own, _ = lax.optimization_barrier((x[0], last))
                last = last + send(own)[:1]
            return last[None]

        own = length // group if kind == "all_gather" else length
        seconds = self.run(body, [((own,), "float32")] * times, group, statistics.median)
        return Measurement(kind, "float32", (group,), 0, 4.0 * length, self.net(seconds, times))

    def turns(self, n: int, products: int, together: bool) -> Measurement:
        """So many products of n x n in a row on every device; after them, perhaps, all meet.

        The median of calls.
        """
        times = 16

        def body(x: Any) -> Any:
            x = x[0]
            for _ in range(times):
                for _ in range(products):
                    x = jnp.tanh(lax.dot(x, x))
                if together:
                    x = lax.dynamic_update_slice(x, 0.1 * lax.psum(x[:1, :4], _ALL), (0, 0))
            return x[None]

        kind = "together" if together else "apart"
        seconds = self.net(self.run(body, [((n, n), "float32")], of=statistics.median), times)
        return Measurement(kind, "float32", (n, products), 2.0 * n**3 * products, 0, seconds)
