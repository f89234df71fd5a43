"""The machine a program would run on: rates, memory, overheads, and how close to them it comes.

A preset (see `presets.py`) states what the vendor publishes; `calibrate` (see `calibration.py`)
returns a device with measured efficiencies.
"""

from __future__ import annotations

import bisect
import dataclasses
import itertools
import json
import math
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np

PRODUCTS: Mapping[str, str | None] = {
    "matmul": None,
    "convolution": None,
    "grouped_convolution": "convolution",
    "weight_gradient": "convolution",
    "grouped_weight_gradient": "grouped_convolution",
}
"""Kinds of matrix products, each with the kind that stands in where its efficiency is unknown. A
weight gradient is a convolution with a window as large as an image."""


@dataclasses.dataclass(frozen=True)
class Curve:
    """A figure as a function of the work's size, linear in log(size), flat outside.

    Attributes:
      sizes: sizes in increasing order.
      values: the figure at each size.
    """

    sizes: tuple[float, ...] = (1.0,)
    values: tuple[float, ...] = (1.0,)

    def __post_init__(self) -> None:
        if len(self.sizes) != len(self.values) or not self.sizes:
            raise ValueError(
                f"a Curve needs as many values as sizes and at least one; got {len(self.sizes)} "
                f"sizes and {len(self.values)} values"
            )
        if any(b <= a for a, b in itertools.pairwise(self.sizes)):
            raise ValueError(f"the sizes of a Curve must increase; got {self.sizes}")
        if min(self.values) <= 0:
            raise ValueError(f"the values of a Curve must be positive; got {self.values}")

    def at(self, size: float) -> float:
        """The fraction reached by work of this size."""
        sizes, values = self.sizes, self.values
        if size <= sizes[0]:
            return values[0]
        if size >= sizes[-1]:
            return values[-1]
        right = bisect.bisect_right(sizes, size)
        low, high = sizes[right - 1], sizes[right]
        weight = math.log(size / low) / math.log(high / low)
        return values[right - 1] * (1 - weight) + values[right] * weight

    def at_each(self, sizes: np.ndarray) -> np.ndarray:
        """The figures reached by work of these sizes, all above zero; `at` for many at once."""
        return np.interp(np.log(sizes), np.log(self.sizes), self.values)

    @property
    def is_flat(self) -> bool:
        return len(self.sizes) == 1


@dataclasses.dataclass(frozen=True)
class Device:
    """One accelerator (or one of the devices that a CPU pretends to be).

    Attributes:
      name: what `--device` calls it.
      kind: "cpu", "gpu" or "tpu": selects how the compiler's fusion and buffers are modelled.
      matmul_flops: peak FLOP/s of matrix products and convolutions by dtype, at jax's default
        precision.
      vector_flops: peak FLOP/s of elementwise arithmetic in float32.
      memory_bytes: memory that programs may use, in bytes.
      memory_bandwidth: bytes per second between memory and the cores, reads and writes together.
      kernel_seconds: fixed cost of one kernel.
      step_seconds: fixed cost of one call of a compiled program: dispatch and synchronisation.
      result_seconds: fixed cost of each array that a program returns, besides `step_seconds`.
      loop_seconds: fixed cost of one turn of a loop, beyond the kernels of its body.
      branch_seconds: for how long the device is idle where the host reads a value of it to choose
        a branch; 0 where the device chooses by itself. Such a host makes the arrays that a program
        returns while the device works on the call before, unless it has to wait for a value.
      skew: how far the last device is behind when all meet in a collective, as a fraction of the
        work since they met before; no small part where devices share cores and take turns.
      most_skew_seconds: how far it is behind at most.
      alone: how many times faster a device is than its rates while all others are idle; above 1
        where devices share cores, and rates are those while all of them work.
      efficiency: by kind of product (see `PRODUCTS`) and dtype: the fraction of `matmul_flops`
        reached, by FLOPs.
      transposed_seconds: seconds more that a matrix product takes for each element of a right
        operand that lies transposed, by how many products it sums; None where it takes no longer.
      memory_efficiency: fraction of `memory_bandwidth` reached by a kernel that moves so many
        bytes.
      transcendental_flops: how many simple operations one exponential, logarithm or tanh costs.
      sources: where each figure comes from.
      chosen: why this device was taken, where nobody named it; for whoever prints a plan.
      limit: where `memory_bytes` come from, if not from the vendor; likewise.
    """

    name: str
    kind: str
    matmul_flops: Mapping[str, float]
    vector_flops: float
    memory_bytes: int
    memory_bandwidth: float
    kernel_seconds: float
    step_seconds: float = 0.0
    result_seconds: float = 0.0
    loop_seconds: float = 0.0
    branch_seconds: float = 0.0
    skew: float = 0.0
    most_skew_seconds: float = 0.0
    alone: float = 1.0
    efficiency: Mapping[str, Mapping[str, Curve]] = dataclasses.field(default_factory=dict)
    transposed_seconds: Curve | None = None
    memory_efficiency: Curve = Curve()
    transcendental_flops: float = 8.0
    sources: Mapping[str, str] = dataclasses.field(default_factory=dict)
    chosen: str = dataclasses.field(default="", compare=False)
    limit: str = dataclasses.field(default="", compare=False)

    def __post_init__(self) -> None:
        if self.kind not in ("cpu", "gpu", "tpu"):
            raise ValueError(f"kind of device {self.name!r} is {self.kind!r}; use cpu, gpu or tpu")
        for field in ("vector_flops", "memory_bytes", "memory_bandwidth"):
            if getattr(self, field) <= 0:
                raise ValueError(
                    f"{field} of device {self.name!r} is {getattr(self, field)}; "
                    "it must be positive"
                )
        if not isinstance(self.matmul_flops, Mapping) or not self.matmul_flops:
            raise ValueError(
                f"matmul_flops of device {self.name!r} is {self.matmul_flops!r}; "
                "it must give FLOP/s by dtype"
            )
        for dtype, rate in self.matmul_flops.items():
            if rate <= 0:
                raise ValueError(
                    f"matmul_flops of device {self.name!r} is {rate} for {dtype}; "
                    "it must be positive"
                )
        fixed = ("kernel", "step", "result", "loop", "branch")
        for field in (*(f"{what}_seconds" for what in fixed), "skew"):
            if getattr(self, field) < 0:
                raise ValueError(
                    f"{field} of device {self.name!r} is {getattr(self, field)}; "
                    "it must not be negative"
                )
        if self.alone < 1:
            raise ValueError(
                f"alone of device {self.name!r} is {self.alone}; a device is no slower where all "
                "others are idle, so it is at least 1"
            )
        if not isinstance(self.memory_efficiency, Curve):
            raise ValueError(
                f"memory_efficiency of device {self.name!r} is {self.memory_efficiency!r}, no Curve"
            )

    def matmul_rate(self, dtype: str, flops: float, kind: str = "matmul") -> float:
        """FLOP/s of a product of this kind, dtype and size."""
        return self.matmul_peak(dtype) * self.matmul_efficiency(dtype, kind).at(flops)

    def matmul_peak(self, dtype: str) -> float:
        """FLOP/s of products of this dtype where they are most efficient."""
        return self.matmul_flops.get(dtype) or self.matmul_flops.get("float32", self.vector_flops)

    def matmul_efficiency(self, dtype: str, kind: str = "matmul") -> Curve:
        """The share of the peak that products of this kind reach, as a curve over their FLOPs."""
        known: str | None = kind
        while known is not None and known not in self.efficiency:
            known = PRODUCTS[known]
        table = self.efficiency[known] if known is not None else {}
        return table.get(dtype) or table.get("float32") or Curve()

    def bandwidth(self, nbytes: float) -> float:
        """Bytes per second that a kernel moving so many bytes reaches."""
        return self.memory_bandwidth * self.memory_efficiency.at(nbytes)

    def joint_seconds(self, seconds: Sequence[float]) -> float:
        """Seconds until devices that begin together are done, each with so much work by its rates;
        what idle ones leave of shared cores the others have.
        """
        if not seconds:
            return 0.0
        return max(max(seconds) / self.alone, sum(seconds) / len(seconds))

    def call_seconds(self, results: int, chooses: bool = False) -> float:
        """Seconds of calling a program besides its kernels.

        Args:
          results: how many arrays the program returns.
          chooses: True if it has branches.
        """
        hidden = self.branch_seconds > 0 and not chooses
        return self.step_seconds + (0.0 if hidden else self.result_seconds * max(results - 1, 0))

    def to_json(self) -> dict[str, Any]:
        """A JSON value from which `from_json` makes an equal device."""
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Device:
        """The device that `to_json` wrote."""
        values = dict(data)
        values["efficiency"] = {
            kind: {dtype: _curve(curve) for dtype, curve in table.items()}
            for kind, table in values.get("efficiency", {}).items()
        }
        for field in ("memory_efficiency", "transposed_seconds"):
            if values.get(field):
                values[field] = _curve(values[field])
        return cls(**values)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the device as JSON, to be read by `load` or given to `--device`."""
        with open(path, "w", encoding="utf-8") as file:
            json.dump(self.to_json(), file, indent=1)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Device:
        """Reads what `save` of a device or of a calibration wrote.

        Raises:
          ValueError: naming the file, where it holds anything else.
        """
        return read_saved(path, lambda data: cls.from_json(data.get("device", data)))


T = TypeVar("T")


def read_saved(
    path: str | os.PathLike[str],
    make: Callable[[Any], T],
    kind: str = "device",
    remedy: str = "Write it anew with calibrate().save(), or name a preset",
) -> T:
    """Reads a JSON object from a file and returns `make` of it.

    Args:
      path: of the file.
      make: reads the object.
      kind: what should be in the file, for messages.
      remedy: what to do where it is not, for messages.

    Raises:
      ValueError: naming the file and its fault.
    """
    try:
        with open(path, encoding="utf-8") as file:
            data = json.load(file)
        if not isinstance(data, dict):
            raise ValueError(f"it holds a {type(data).__name__}, not an object")
        return make(data)
    except KeyError as error:
        what = f"it has no field {error}"
    except (OSError, TypeError, AttributeError, ValueError) as error:
        what = str(error)
    raise ValueError(f"{os.fspath(path)} is no {kind} that can be read: {what}. {remedy}")


def _curve(data: Any) -> Curve:
    return Curve(tuple(data["sizes"]), tuple(data["values"]))
