"""Predictions on plans: a `Simulator` is what `partition(..., simulate=...)` takes."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Collection, Mapping
from typing import Any

from ..ir.program import Program
from .at_hand import choose_device
from .device import Device
from .presets import get_device
from .simulate import Simulation, saved_topology, simulate, simulate_time, topology_of
from .timing import Timing
from .topology import Segment, Topology


@dataclasses.dataclass(frozen=True)
class Simulator:
    """Predicts memory and time of each step of a plan.

    `pt.partition(update, mesh, schedule, simulate=pt.Simulator("a100-80gb"))`.

    Attributes:
      device: a preset's name, the path of a saved calibration, or a device; "auto" is the one at
        hand, and an H200 where jax has no accelerator that is known.
      topology: how the devices are joined; by default as the calibration found, or as usual.
      overlap: True if collectives run beside kernels; by default on accelerators only.
    """

    device: str | Device = "auto"
    topology: Topology | None = None
    overlap: bool | None = None

    def __post_init__(self) -> None:
        # Files are read, and a wrong name is told, here and not at every prediction.
        object.__setattr__(self, "topology", self.topology or saved_topology(self.device))
        object.__setattr__(self, "device", choose_device(self.device))

    def place(self, mesh: Mapping[str, int]) -> dict[str, tuple[Segment, ...]]:
        """The levels of the topology that each axis of a mesh spans.

        Raises:
          ValueError: the topology does not hold the mesh.
        """
        topology = self.topology or topology_of(self.device, math.prod(mesh.values()))
        return topology.place(mesh)

    @property
    def overlaps(self) -> bool:
        """True if collectives run beside kernels."""
        return get_device(self.device).kind != "cpu" if self.overlap is None else self.overlap

    def predict(
        self, program: Program, mesh: Mapping[str, int], donated: Collection[str] = ()
    ) -> Simulation:
        """The prediction for a local program on a mesh."""
        return simulate(program, self.device, self.topology, mesh, donated, self.overlap)

    def predict_time(self, program: Program, mesh: Mapping[str, int]) -> Timing:
        """The predicted times of a local program on a mesh, without its memory: half the work."""
        return simulate_time(program, self.device, self.topology, mesh, self.overlap)

    def to_json(self) -> dict[str, Any]:
        """A JSON value from which `from_json` makes an equal simulator, calibrated or not."""
        topology = None if self.topology is None else self.topology.to_json()
        device = get_device(self.device).to_json()
        return {"device": device, "topology": topology, "overlap": self.overlap}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Simulator:
        """The simulator that `to_json` wrote."""
        topology = None if data["topology"] is None else Topology.from_json(data["topology"])
        return cls(Device.from_json(data["device"]), topology, data["overlap"])
