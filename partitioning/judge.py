"""The judge that a tactic that searches asks about a plan in the making."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Protocol

from .decide.flops import OpFlops
from .ir.program import Program
from .rematerialization.recompute import Recompute
from .simulator.attach import Simulator
from .simulator.device import Device
from .simulator.presets import get_device
from .simulator.simulate import Simulation
from .simulator.topology import Segment


class CandidatePlan(Protocol):
    """The plan of the present decisions, computed as far as it is asked.

    Attributes:
      program: the local program.
      simulation: its cost.
    """

    @property
    def program(self) -> Program: ...

    @property
    def simulation(self) -> Simulation: ...


@dataclasses.dataclass(eq=False)
class PlanJudge:
    """Simulates a plan in the making; nothing costs until it is asked.

    Attributes:
      simulator: predicts costs.
      mesh: sizes of axes.
      donated: names of the donated arguments.
      recompute: the memory that the plan is to keep to by computing activations again.
      work: the floating point operations of the program.
      candidate: the plan of the present decisions.
    """

    simulator: Simulator
    mesh: Mapping[str, int]
    donated: tuple[str, ...]
    recompute: Recompute | None
    work: OpFlops
    candidate: Callable[[], CandidatePlan]

    @property
    def device(self) -> Device:
        """The device that is planned for."""
        return get_device(self.simulator.device)

    @functools.cached_property
    def placement(self) -> dict[str, tuple[Segment, ...]]:
        """The levels of links that each axis spans."""
        return self.simulator.place(self.mesh)

    @property
    def overlap(self) -> bool:
        """True if collectives run beside kernels."""
        return self.simulator.overlaps

    @property
    def recomputed_to(self) -> float | None:
        """The bytes that the plan is to keep to, where activations may be computed again."""
        return None if self.recompute is None else self.recompute.limit(self.device)

    def predict(self, program: Program) -> Simulation:
        """Returns the cost of a local program."""
        return self.simulator.predict(program, self.mesh, self.donated)

    def simulate(self) -> Simulation:
        """Returns the cost of the present decisions, with the recomputation that they need."""
        candidate = self.candidate()
        if self.recompute is None:
            return candidate.simulation
        return self.recompute.nearest(candidate.program, self.device, self.donated, self.predict)
