"""Measures the machine at hand, so that predictions of it rest on figures rather than on
datasheets.

Everything is measured on all given devices at once (a step of a partitioned program runs on all of
them, and the virtual devices of a CPU share its cores and its memory): what one computes as the
best of several runs; what all wait for as the median, as it is by chance who comes last.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import json
import os
from collections.abc import Iterable, Sequence
from typing import Any

import jax

from .collectives import KINDS, PERMUTE
from .device import Device, read_saved
from .fit import fit_device, fit_topology
from .microbench import Bench, Measurement
from .presets import DEVICES, told_by
from .topology import Topology

#: Times that collectives are measured; odd.
_ROUNDS = 3
#: (size, number) of the products between two meetings of all devices.
_TURNS = ((16, 1), (64, 1), (128, 1), (128, 2), (128, 4), (128, 8), (128, 16))


@dataclasses.dataclass(frozen=True)
class Calibration:
    """The measurements of a calibration, and the device and topology fitted to them."""

    device: Device
    topology: Topology
    samples: tuple[Measurement, ...]

    def to_json(self) -> dict[str, Any]:
        """Device, topology and the raw samples."""
        return {
            "device": self.device.to_json(),
            "topology": self.topology.to_json(),
            "samples": [dataclasses.asdict(s) for s in self.samples],
        }

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes it as JSON; `--device` reads such a file."""
        with open(path, "w", encoding="utf-8") as file:
            json.dump(self.to_json(), file, indent=1)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Calibration:
        """Reads what `save` wrote."""
        return read_saved(
            path,
            lambda data: cls(
                Device.from_json(data["device"]),
                Topology.from_json(data["topology"]),
                tuple(Measurement(**{**s, "size": tuple(s["size"])}) for s in data["samples"]),
            ),
        )


def calibrate(
    devices: Sequence[Any] | None = None,
    dtypes: Sequence[str] | None = None,
    repeats: int = 5,
    thorough: bool | None = None,
) -> Calibration:
    """Measures rates, overheads and links of the devices at hand: one or two minutes on a CPU.

    Args:
      devices: jax devices, by default all; all are kept busy at once.
      dtypes: of matrix products and convolutions; by default float32, and bfloat16 on accelerators.
      repeats: how many runs of each measurement.
      thorough: more and larger sizes; by default on accelerators only.
    """
    devices = list(devices if devices is not None else jax.devices())
    platform = devices[0].platform
    kind = {"gpu": "gpu", "cuda": "gpu", "rocm": "gpu", "tpu": "tpu"}.get(platform, "cpu")
    thorough = kind != "cpu" if thorough is None else thorough
    dtypes = tuple(dtypes or (("float32", "bfloat16") if kind != "cpu" else ("float32",)))
    bench = Bench(devices, repeats)
    samples = [bench.step()]
    bench.step_seconds = samples[0].seconds
    samples.append(bench.loop())
    samples += [bench.results(count) for count in (1, 64)]
    for size in _geometric(1 << 10, 1 << (30 if thorough else 24), 4):
        samples.append(bench.memory(size))
    samples.append(bench.vector(1 << (22 if thorough else 14)))
    samples.append(bench.transcendental(1 << (22 if thorough else 14)))
    for k, transposed in itertools.product((16, 64, 256, 512, 1024), (False, True)):
        samples.append(bench.straight(k, transposed))
    for dtype in dtypes:
        for n in (
            (8, 64, 128, 256, 512, 1024, 2048, 4096, 8192)
            if thorough
            else (4, 16, 32, 64, 128, 256, 512)
        ):
            samples.append(bench.matmul(dtype, n, n, n))
        cases = _CONVOLUTIONS_LARGE if thorough else _CONVOLUTIONS_SMALL
        for case, gradient in itertools.product(cases, (False, True)):
            samples.append(bench.convolution(dtype, *case, gradient=gradient))
        # Accelerators compile long for each, and few programs hold them.
        for case, gradient in itertools.product(cases[:: 2 if thorough else 1], (False, True)):
            samples.append(bench.convolution(dtype, *case, groups=4, gradient=gradient))
    if len(devices) > 1:
        samples.append(bench.alone())
        groups = [g for g in range(2, len(devices) + 1) if len(devices) % g == 0]
        sizes = _geometric(1 << 12, 1 << (26 if thorough else 22), 16 if thorough else 8)
        meetings = [
            functools.partial(bench.collective, collective, size, group)
            for collective, group, size in itertools.product((*KINDS, PERMUTE), groups, sizes)
        ]
        meetings += [
            functools.partial(bench.turns, *size, together)
            for size, together in itertools.product(_TURNS, (False, True))
        ]
        # In rounds, so that one busy moment of the machine does not fall on one size alone.
        rounds = [[meet() for meet in meetings] for _ in range(_ROUNDS)]
        samples += [_middle(same) for same in zip(*rounds, strict=True)]
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


def _middle(same: Sequence[Measurement]) -> Measurement:
    """The median by seconds, of an odd number."""
    return sorted(same, key=lambda sample: sample.seconds)[len(same) // 2]


def _geometric(first: int, last: int, factor: int) -> Iterable[int]:
    size = first
    while size <= last:
        yield size
        size *= factor


def nearest(device: Any, count: int) -> Device:
    """The preset that a device of this machine is most like, with the memory that it has.

    Args:
      device: one of `jax.devices()`.
      count: how many devices share the host's memory, where it has none of its own.
    """
    preset = DEVICES[told_by(str(device.device_kind)) or "h200"]
    platform = "gpu" if device.platform in ("cuda", "rocm") else device.platform
    return dataclasses.replace(
        preset,
        kind=platform,
        name=str(device.device_kind),
        memory_bytes=_memory_of(device, count),
        chosen="the device at hand",
        limit="as jax hands out here" if platform != "cpu" else "its part of the host's",
    )


def _memory_of(device: Any, count: int) -> int:
    try:
        stats = device.memory_stats()
    except Exception:  # some back ends have none and say so by raising
        stats = None
    if stats and "bytes_limit" in stats:
        return int(stats["bytes_limit"])
    return int(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // count)
