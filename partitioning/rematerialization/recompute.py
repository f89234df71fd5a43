"""`Recompute`: a program within a memory budget, by computing activations again."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

from ..ir.program import Program
from ..rewritten import Rewritten, Saved
from ..simulator.device import Device
from ..simulator.simulate import Simulation, amount
from .costs import Costs
from .cuts import Chain, chains
from .loops import unstacked
from .regions import rewritten
from .rotor import Act, Rotor

#: The number of plans of a chain that are looked at, from keeping all to keeping least.
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
        """The cost of the program that `fit` returns, or of the least one where none fits."""
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
        mesh: Mapping[str, int],
    ) -> Rewritten:
        """The program, or the first that computes some of it again and keeps to the memory.

        Args:
          program: a local program; stays as it is.
          device: the device.
          donated: names of donated arguments.
          simulate: judges a program.
          mesh: sizes of axes.

        Raises:
          ValueError: where no program keeps to it.
        """
        limit = self.limit(device)
        before = simulate(program)
        figures = {
            "regions": 0,
            "peak_memory_bytes_before": before.peak_memory_bytes,
            "predicted_seconds_before": before.predicted_seconds.total,
        }
        had, may = (amount(n, "B", 1024) for n in (before.peak_memory_bytes, limit))
        if before.peak_memory_bytes <= limit:
            note = f"nothing is computed again: {had} are within {may}"
            return Rewritten(program, mesh, lambda: before, note, figures)
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
        figures["regions"] = regions
        return Rewritten(chosen, mesh, lambda: after, note, figures, frontier.recipe(index))


def refitted(
    program: Program,
    device: Device,
    simulate: Callable[[Program], Simulation],
    mesh: Mapping[str, int],
    saved: Saved,
) -> Rewritten:
    """The program that `Recompute.fit` chose, from what its result saved."""
    recipe = saved["recipe"]
    chosen = rebuilt(program, device, recipe) if recipe else program
    predict = functools.partial(simulate, chosen)
    return Rewritten(chosen, mesh, predict, saved["note"], saved["figures"], recipe)


def rebuilt(program: Program, device: Device, recipe: Mapping[str, Any]) -> Program:
    """The program of a frontier that has this recipe; the given program stays as it is."""
    base = unstacked(program, device, recipe["stacks"]) if recipe["stacks"] else program
    acts = {number: [Act(*act) for act in acts] for number, acts in recipe["chains"]}
    plans: dict[Program, list[tuple[Chain, list[Act]]]] = {}
    for number, chain in enumerate(chains(base) if acts else ()):
        if number in acts:
            plans.setdefault(chain.program, []).append((chain, acts[number]))
    return rewritten(base, plans)


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
        self._unstacked = [(0.0, program)]
        for share in _STACKS:
            fewer = unstacked(program, device, share)
            if fewer is not program:
                self._unstacked.append((share, fewer))
        self._known: dict[int, tuple[Program, Simulation]] = {}

    @functools.cached_property
    def _plans(self) -> list[tuple[int, Chain, list[tuple[Act, ...]]]]:
        """For every chain, with its number, its plans from keeping all to keeping least."""
        program = self._unstacked[-1][1]
        costs = Costs(program, self.device, self.donated)
        found = []
        for number, chain in enumerate(chains(program)):
            stages = costs.stages(chain)
            if any(stage.saved for stage in stages):
                plans = [acts for _, acts in Rotor(stages).plans()]
                found.append((number, chain, plans))
        return found

    @functools.cached_property
    def _count(self) -> int:
        most = max((len(plans) for *_, plans in self._plans), default=1)
        return len(self._unstacked) + min(_PLANS, most) - 1

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> tuple[Program, Simulation]:
        """The `index`th program and its cost; 0 is the given one."""
        if index not in self._known:
            program = self._made(index)
            self._known[index] = program, self.simulate(program)
        return self._known[index]

    def _made(self, index: int) -> Program:
        if index < len(self._unstacked):
            return self._unstacked[index][1]
        plans: dict[Program, list[tuple[Chain, tuple[Act, ...]]]] = {}
        for _, chain, acts in self._acts(index):
            plans.setdefault(chain.program, []).append((chain, acts))
        return rewritten(self._unstacked[-1][1], plans)

    def _acts(self, index: int) -> Iterator[tuple[int, Chain, tuple[Act, ...]]]:
        """The plan of every chain in the `index`th program, one that has any."""
        share = (index + 1 - len(self._unstacked)) / (self._count - len(self._unstacked))
        for number, chain, acts in self._plans:
            yield number, chain, acts[round(share * (len(acts) - 1))]

    def recipe(self, index: int) -> dict[str, Any]:
        """Plain data from which `rebuilt` writes the `index`th program."""
        stacks, acts = self._unstacked[min(index, len(self._unstacked) - 1)][0], []
        if index >= len(self._unstacked):
            acts = [
                [number, [[act.what, act.stage] for act in some]]
                for number, _, some in self._acts(index)
            ]
        return {"stacks": stacks, "chains": acts}

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
