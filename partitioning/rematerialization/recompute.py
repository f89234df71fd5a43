"""`Recompute`: a program within a memory budget, by computing activations again."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Collection
from typing import Any

from ..ir.program import Program
from ..simulator.device import Device
from ..simulator.simulate import Simulation, amount
from .costs import Costs
from .cuts import Chain, chains
from .loops import unstacked
from .regions import rewritten
from .rotor import Act, Rotor

#: How many plans of a chain are looked at, from keeping all to keeping least.
_PLANS = 24
#: Shares of what can be dropped of loops' stacks that are tried.
_STACKS = (0.25, 0.5, 0.75, 1.0)


@dataclasses.dataclass(frozen=True)
class Recompute:
    """Computes activations again in the backward pass, where memory does not suffice otherwise.

    Attributes:
      memory: how much of a device's memory a step may need, as a share of it.
    """

    memory: float = 0.9

    def __post_init__(self) -> None:
        known = isinstance(self.memory, int | float) and not isinstance(self.memory, bool)
        if not known or not 0 < self.memory <= 1:
            raise ValueError(
                f"Recompute(memory={self.memory!r}): it is a share of the device's memory, above 0 "
                "and at most 1"
            )

    def limit(self, device: Device) -> float:
        """The bytes of a device that a step may need."""
        return self.memory * device.memory_bytes

    def nearest(
        self,
        program: Program,
        device: Device,
        donated: Collection[str],
        simulate: Callable[[Program], Simulation],
    ) -> Simulation:
        """What the program costs that `fit` returns; where none fits, that which needs least."""
        limit = self.limit(device)
        before = simulate(program)
        if before.peak_memory_bytes <= limit:
            return before
        frontier = Frontier(program, device, donated, simulate)
        index = frontier.first_within(limit)
        return frontier.least() if index is None else frontier[index][1]

    def fit(
        self,
        program: Program,
        device: Device,
        donated: Collection[str],
        simulate: Callable[[Program], Simulation],
    ) -> Recomputed:
        """The program, or the first that computes some of it again and keeps to the memory.

        Args:
          program: a local program; stays as it is.
          device: the device.
          donated: names of donated arguments.
          simulate: judges a program.

        Raises:
          ValueError: where no program keeps to it.
        """
        limit = self.limit(device)
        before = simulate(program)
        had, may = (amount(n, "B", 1024) for n in (before.peak_memory_bytes, limit))
        if before.peak_memory_bytes <= limit:
            note = f"nothing is computed again: {had} are within {may}"
            return Recomputed(program, before, before, 0, note)
        frontier = Frontier(program, device, donated, simulate)
        index = frontier.first_within(limit)
        if index is None:
            least = frontier.least().peak_memory_bytes
            raise ValueError(
                f"infeasible: the step needs at least {amount(least, 'B', 1024)} of a device, "
                f"with all computed again that can be, and may need {may} of {device.name} "
                f"(memory={self.memory}); use more devices, a schedule that splits more, a smaller "
                "batch, or more memory"
            )
        chosen, after = frontier[index]
        regions = sum(op.name == "checkpoint" for op in chosen.walk())
        regions -= sum(op.name == "checkpoint" for op in program.walk())
        has = amount(after.peak_memory_bytes, "B", 1024)
        longer = after.predicted_seconds.total / before.predicted_seconds.total
        note = (
            f"{regions} regions are computed again for the backward pass: {has} of {may} instead "
            f"of {had}, in {longer:.2f} times the time"
        )
        return Recomputed(chosen, after, before, regions, note)


@dataclasses.dataclass(frozen=True)
class Recomputed:
    """A program that keeps less, and what it costs.

    Attributes:
      program: the program; the given one where that suffices.
      simulation: what it costs.
      before: what the given one costs.
      regions: how many regions are computed again.
      note: what was done, in words.
    """

    program: Program
    simulation: Simulation
    before: Simulation
    regions: int
    note: str

    def to_json(self) -> dict[str, Any]:
        """What was done, by name."""
        return {
            "regions": self.regions,
            "peak_memory_bytes_before": self.before.peak_memory_bytes,
            "predicted_seconds_before": self.before.predicted_seconds.total,
        }


class Frontier:
    """The programs that compute more and more again, each made and judged when asked for.

    Args:
      program: the local program; stays as it is.
      device: the device.
      donated: names of donated arguments.
      simulate: judges a program.
    """

    def __init__(
        self,
        program: Program,
        device: Device,
        donated: Collection[str],
        simulate: Callable[[Program], Simulation],
    ):
        self.device = device
        self.donated = donated
        self.simulate = simulate
        # Loops come first: what they stack is most of what a program with loops keeps.
        self._unstacked = [program]
        for share in _STACKS:
            fewer = unstacked(program, device, share)
            if fewer is not program:
                self._unstacked.append(fewer)
        self._known: dict[int, tuple[Program, Simulation]] = {}

    @functools.cached_property
    def _plans(self) -> list[tuple[Chain, list[tuple[Act, ...]]]]:
        """For every chain, its plans from keeping all to keeping least."""
        program = self._unstacked[-1]
        costs = Costs(program, self.device, self.donated)
        found = []
        for chain in chains(program):
            stages = costs.stages(chain)
            if any(stage.saved for stage in stages):
                plans = [acts for _, acts in Rotor(stages).plans()]
                found.append((chain, plans))
        return found

    @functools.cached_property
    def _count(self) -> int:
        most = max((len(plans) for _, plans in self._plans), default=1)
        return len(self._unstacked) + min(_PLANS, most) - 1

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> tuple[Program, Simulation]:
        """The program that is the `index`th, and what it costs; 0 is the given one."""
        if index not in self._known:
            program = self._program(index)
            self._known[index] = program, self.simulate(program)
        return self._known[index]

    def _program(self, index: int) -> Program:
        if index < len(self._unstacked):
            return self._unstacked[index]
        share = (index + 1 - len(self._unstacked)) / (self._count - len(self._unstacked))
        plans: dict[Program, list[tuple[Chain, tuple[Act, ...]]]] = {}
        for chain, acts in self._plans:
            chosen = acts[round(share * (len(acts) - 1))]
            plans.setdefault(chain.program, []).append((chain, chosen))
        return rewritten(self._unstacked[-1], plans)

    def least(self) -> Simulation:
        """Of what was judged so far, what needs least memory."""
        return min((s for _, s in self._known.values()), key=lambda s: s.peak_memory_bytes)

    def first_within(self, limit: float) -> int | None:
        """The first that needs at most so many bytes, None where none does."""
        low, high = 0, self._count - 1
        back = 1  # The last ones compute so much at once that they may need more again.
        while self[high][1].peak_memory_bytes > limit:
            high -= back
            back *= 2
            if high <= 0:
                return 0 if self[0][1].peak_memory_bytes <= limit else None
        while low < high:
            middle = (low + high) // 2
            if self[middle][1].peak_memory_bytes <= limit:
                high = middle
            else:
                low = middle + 1
        return low
