"""What a tactic that searches may ask of a plan in the making."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from .decide.flops import OpFlops
from .ir.program import Program
from .rematerialization.recompute import Recompute
from .simulator.attach import Simulator
from .simulator.device import Device, get_device
from .simulator.simulate import Simulation
from .simulator.topology import Segment


class SimulatedStep(Protocol):
    """A step of a plan: its local program, and what it costs."""

    @property
    def program(self) -> Program: ...

    @property
    def simulation(self) -> Simulation: ...


@dataclasses.dataclass(eq=False)
class PlanJudge:
    """Simulates a plan in the making; nothing costs until it is asked.

    Attributes:
      given: what the plan is simulated with.
      mesh: sizes of axes.
      donated: names of the donated arguments.
      work: the floating point operations of the program.
      recompute: what memory the plan is to keep to by computing activations again.
      candidate: what was decided up to now, as a step.
    """

    given: Callable[[Any], Simulation]
    mesh: Mapping[str, int]
    donated: tuple[str, ...]
    work: OpFlops
    recompute: Recompute | None
    candidate: Callable[[], SimulatedStep]

    @functools.cached_property
    def simulator(self) -> Simulator:
        """The simulator; of another judge than it only the device is known."""
        if isinstance(self.given, Simulator):
            return self.given
        return Simulator(self.simulate().device)

    @property
    def device(self) -> Device:
        """The device that is planned for."""
        return get_device(self.simulator.device)

    @functools.cached_property
    def placement(self) -> dict[str, tuple[Segment, ...]]:
        """Which levels of links each axis spans."""
        return self.simulator.place(self.mesh)

    @property
    def overlap(self) -> bool:
        """Whether collectives run beside kernels."""
        return self.simulator.overlaps

    @property
    def recomputed_to(self) -> float | None:
        """The bytes that the plan is to keep to, where activations may be computed again."""
        return None if self.recompute is None else self.recompute.limit(self.device)

    def predict(self, program: Program) -> Simulation:
        """What a local program costs."""
        return self.simulator.predict(program, self.mesh, self.donated)

    def simulate(self) -> Simulation:
        """What the decisions up to now cost, with what would be computed again."""
        step = self.candidate()
        if self.recompute is None:
            return step.simulation
        return self.recompute.nearest(step.program, self.device, self.donated, self.predict)
