"""The simulator: memory, FLOPs and time of one program on one device of a mesh, before anything
runs.
"""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Collection, Mapping
from typing import Any

from ..ir.garbage import no_garbage_collection
from ..ir.program import Program
from . import costs
from .at_hand import choose_device
from .buffers import assign, scheduled
from .device import Device, read_saved
from .errors import error_of
from .graph import build
from .memory import Memory, donation_pairs, memory_of
from .presets import DEVICES, default_topology, whole_hosts
from .timing import Queues, Seconds, Timing
from .topology import Topology


def amount(value: float, unit: str, base: int) -> str:
    """A number with a prefix: 1.5 GiB, 2.0 T."""
    infix = "i" if base == 1024 else ""
    for prefix in ("", "k" if base == 1000 else "K", "M", "G", "T"):
        if abs(value) < base:
            digits = 0 if not prefix or abs(value) >= 100 else 2 if abs(value) < 10 else 1
            return f"{value:.{digits}f} {prefix + infix if prefix else ''}{unit}".rstrip()
        value /= base
    return f"{value:.2f} P{infix}{unit}".rstrip()


@dataclasses.dataclass(frozen=True)
class Simulation:
    """The cost of one program on one device.

    Attributes:
      device: the device it was simulated on.
      memory: bytes in use, and the values that use them.
      flops: floating point operations of this device in one step.
      timing: seconds, and the events they consist of.
    """

    device: Device
    memory: Memory
    flops: float
    timing: Timing

    @property
    def peak_memory_bytes(self) -> int:
        """Arguments, results and temporaries at once."""
        return self.memory.peak

    @property
    def predicted_seconds(self) -> Seconds:
        """Compute, communication and its exposed part."""
        return self.timing.seconds

    @property
    def fits(self) -> bool:
        """True if the device's memory holds it."""
        return self.memory.peak <= self.device.memory_bytes

    def columns(self) -> dict[str, str]:
        """Title to text of the columns that a printed plan gets."""
        seconds = self.predicted_seconds
        peak = amount(self.peak_memory_bytes, "B", 1024)
        return {
            f"peak ({self.device.name})": peak + ("" if self.fits else " (too large)"),
            "FLOPs": amount(self.flops, "", 1000),
            "seconds": self.shown_seconds(),
            "exposed": f"{seconds.exposed:.3g}",
        }

    def shown_seconds(self, unit: str = "") -> str:
        """The time in words: where they differ also that without overlap, and the error."""
        seconds = self.predicted_seconds
        ends = list(dict.fromkeys(f"{end:.3g}" for end in (seconds.total, seconds.apart)))
        return " to ".join(ends) + unit + error_of(self.device).beside(seconds.total)

    def assumptions(self) -> str:
        """The device that all was predicted for, the memory that limits it, and the error."""
        device = self.device
        name = f"{device.name} ({device.chosen})" if device.chosen else device.name
        have = amount(device.memory_bytes, "B", 1024)
        if device.limit:
            preset = DEVICES.get(device.name)
            whole = f" of {amount(preset.memory_bytes, 'B', 1024)}" if preset else ""
            have += f"{whole}, {device.limit}"
        return f"predicted for {name} with {have}; seconds {error_of(device)}"

    def to_json(self) -> dict[str, Any]:
        """The figures by name."""
        memory = self.memory.to_json()
        return {
            "device": self.device.name,
            "peak_memory_bytes": self.peak_memory_bytes,
            "memory": {k: memory[k] for k in ("arguments", "outputs", "temporaries", "aliased")},
            "owners": memory["owners"],
            "flops": self.flops,
            "predicted_seconds": self.predicted_seconds.to_json(),
            "seconds_by_kind": dict(self.timing.by_kind),
            "seconds_apart": self.predicted_seconds.apart,
            "fits": self.fits,
            "assumptions": self.assumptions(),
        }


def topology_of(device: str | Device, count: int) -> Topology:
    """The topology of a number of devices: a calibration's, or that of the device's usual machine.

    Args:
      device: a preset's name, the path of a saved calibration, or a device.
      count: how many devices.

    Raises:
      ValueError: unknown device.
    """
    return saved_topology(device) or default_topology(choose_device(device).name, count)


def hosts_of(device: str | Device, count: int) -> Topology:
    """The topology of as few whole hosts as hold a number of devices; else as `topology_of`."""
    return saved_topology(device) or whole_hosts(choose_device(device).name, count)


def saved_topology(device: str | Device) -> Topology | None:
    """The topology of a saved calibration; None if `device` is not the path of one."""
    if not (isinstance(device, str) and device.endswith(".json") and os.path.exists(device)):
        return None
    return read_saved(
        device, lambda data: Topology.from_json(data["topology"]) if "topology" in data else None
    )


@no_garbage_collection()
def simulate(
    program: Program,
    device: str | Device = "auto",
    topology: Topology | None = None,
    mesh: Mapping[str, int] | None = None,
    donated: Collection[str] = (),
    overlap: bool | None = None,
) -> Simulation:
    """Simulates one step of a program on one device.

    Args:
      program: a local program; or a global one, as it would run on a single device.
      device: a preset's name, the path of a calibration, or a device; "auto" is the one at hand.
      topology: how the devices are joined; by default as `topology_of` says.
      mesh: axis name to size, major to minor; needed where the program holds collectives.
      donated: names of donated arguments.
      overlap: True if collectives run beside independent kernels; by default on accelerators only.

    Raises:
      ValueError: unknown device, or a topology that does not hold the mesh.
    """
    mesh = dict(mesh or {})
    queues = _queues(device, topology, mesh, overlap)
    device = queues.device
    graph = build(program, device.kind)
    assignment = assign(graph, donation_pairs(program, donated), kind=device.kind)
    memory = memory_of(program, donated, device.kind, graph, assignment)
    timing = queues.time(assignment, len(program.outputs))
    graph.release()
    return Simulation(device, memory, costs.program_flops(program, kind=device.kind), timing)


@no_garbage_collection()
def simulate_time(
    program: Program,
    device: str | Device = "auto",
    topology: Topology | None = None,
    mesh: Mapping[str, int] | None = None,
    overlap: bool | None = None,
) -> Timing:
    """Times one step of a program on one device, as `simulate` does, and leaves out its memory.

    Args:
      program, device, topology, mesh, overlap: as of `simulate`.

    Raises:
      ValueError: unknown device, or a topology that does not hold the mesh.
    """
    queues = _queues(device, topology, dict(mesh or {}), overlap)
    kind = queues.device.kind
    graph = build(program, kind)
    timing = queues.time(scheduled(graph, kind), len(program.outputs))
    graph.release()
    return timing


def _queues(
    device: str | Device, topology: Topology | None, mesh: Mapping[str, int], overlap: bool | None
) -> Queues:
    """The queues of a device of a mesh."""
    topology = topology or topology_of(device, math.prod(mesh.values()))
    device = choose_device(device)
    overlap = device.kind != "cpu" if overlap is None else overlap
    return Queues(device, topology.place(mesh), overlap)
