"""Predictions on plans: a `Simulator` is what `partition(..., simulate=...)` takes."""

from __future__ import annotations

import dataclasses
from typing import Any

from .device import Device, get_device
from .simulate import Simulation, saved_topology, simulate
from .topology import Topology


@dataclasses.dataclass(frozen=True)
class Simulator:
    """Predicts memory and time of each step of a plan.

    `pt.partition(update, mesh, schedule, simulate=pt.Simulator("a100-80gb"))`.
    """

    device: str | Device = "h200"
    """A preset's name, the path of a saved calibration, or a device."""
    topology: Topology | None = None
    """How the devices are joined; by default as the calibration found, or as usual."""
    overlap: bool | None = None
    """Whether collectives run beside kernels; by default on accelerators only."""

    def __post_init__(self) -> None:
        # Files are read, and a wrong name is told, here and not at every prediction.
        object.__setattr__(self, "topology", self.topology or saved_topology(self.device))
        object.__setattr__(self, "device", get_device(self.device))

    def __call__(self, step: Any) -> Prediction:
        """The prediction for one step of a plan."""
        plan = step.plan
        found = simulate(
            step.program,
            self.device,
            self.topology,
            plan.mesh.axes,
            plan.donated,
            self.overlap,
        )
        return Prediction(**{f.name: getattr(found, f.name) for f in dataclasses.fields(found)})


class Prediction(Simulation):
    """A simulation as plans show it."""

    def columns(self) -> dict[str, str]:
        """Title to text of the columns that a printed plan gets."""
        seconds = self.predicted_seconds
        title = f"peak ({self.device.name})"
        return {
            title: amount(self.peak_memory_bytes, "B", 1024)
            + ("" if self.fits else " (too large)"),
            "FLOPs": amount(self.flops, "", 1000),
            "seconds": f"{seconds.total:.3g}",
            "exposed": f"{seconds.exposed:.3g}",
        }


def amount(value: float, unit: str, base: int) -> str:
    """A number with a prefix: 1.5 GiB, 2.0 T."""
    infix = "i" if base == 1024 else ""
    for prefix in ("", "k" if base == 1000 else "K", "M", "G", "T"):
        if abs(value) < base:
            digits = 0 if not prefix or abs(value) >= 100 else 2 if abs(value) < 10 else 1
            return f"{value:.{digits}f} {prefix + infix if prefix else ''}{unit}".rstrip()
        value /= base
    return f"{value:.2f} P{infix}{unit}".rstrip()
