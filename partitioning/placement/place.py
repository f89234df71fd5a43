"""Chooses the placement of a program, and the steps of its sums there."""

from __future__ import annotations

import collections
import dataclasses
import functools
import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from ..ir.program import COLLECTIVES, Op, Program
from ..rewritten import Rewritten, Saved
from ..simulator.attach import Simulator
from ..simulator.collectives import LIBRARIES, wire_bytes
from ..simulator.presets import get_device
from ..simulator.simulate import Simulation, topology_of
from ..simulator.timing import transfer_of
from ..simulator.topology import Topology, spanned
from .matrix import PlacementMatrix, placements
from .synthesis import ReductionProgram, ReductionStep, reduction_programs, text_of
from .writing import scattered_dim, summable, written

#: So many placements are judged in full, those first whose collectives take least.
_JUDGED = 4
#: The share that a program has to save of a sum's time to take its place.
_WORTH = 0.02


class Hierarchy:
    """A mesh on the levels of a topology, and what collectives cost there.

    Attributes:
      matrix: where the axes lie.
      topology: the topology, with the axes there.
      parts: axes that lie on several levels, in parts.
      mesh: sizes of all axes, in parts.
    """

    def __init__(self, matrix: PlacementMatrix, simulator: Simulator, topology: Topology):
        self.matrix = matrix
        self.topology = matrix.on(topology)
        self.parts = matrix.parts()
        split = matrix.split()
        self.mesh = {axis: math.prod(row) for axis, row in split.rows.items()}
        self.simulator = dataclasses.replace(simulator, topology=self.topology)
        self.in_parts = dataclasses.replace(simulator, topology=split.on(topology))
        self._device = get_device(simulator.device)
        self._segments = self.in_parts.place(self.mesh)
        self._seconds: dict[tuple[str, tuple[str, ...], float], float] = {}
        self._best: dict[tuple[tuple[str, ...], tuple[int, ...], int], _Choice] = {}

    def seconds(self, kind: str, axes: tuple[str, ...], nbytes: float) -> float:
        """Seconds of one collective over parts of axes, by the bytes of the whole array."""
        key = kind, axes, nbytes
        if key not in self._seconds:
            segments = spanned(self._segments, axes)
            self._seconds[key] = transfer_of(kind, nbytes, segments, self._device).seconds
        return self._seconds[key]

    def crossing(self, kind: str, axes: tuple[str, ...], nbytes: float) -> dict[str, float]:
        """Bytes that one wire of each level sends for such a collective, by the level's name."""
        return wire_bytes(kind, nbytes, spanned(self._segments, axes), LIBRARIES[self._device.kind])

    def axes(self, axes: Sequence[str]) -> tuple[str, ...]:
        """Axes in parts."""
        return tuple(part for axis in axes for part in self.parts.get(axis, (axis,)))

    def best(self, op: Op) -> _Choice:
        """The quickest way to a sum; itself where no other is quicker by much."""
        axes = self.axes(op.params["axes"])
        value = op.inputs[0]
        key = axes, value.shape, value.nbytes
        if key not in self._best:
            self._best[key] = self._choose(axes, value.shape, float(value.nbytes))
        return self._best[key]

    def _choose(self, axes: tuple[str, ...], shape: tuple[int, ...], nbytes: float) -> _Choice:
        found: dict[int, list[str]] = collections.defaultdict(list)
        for axis in axes:
            for segment in self._segments.get(axis, ()):
                found[segment.depth].append(axis)
        levels = [tuple(found[depth]) for depth in sorted(found)]
        names = [self.matrix.levels[depth] for depth in sorted(found)]
        flat = self.seconds("all_reduce", axes, nbytes)
        best = _Choice((), None, flat, flat, "")
        if len(levels) < 2 or not nbytes:
            return best
        for program in reduction_programs(len(levels)):
            steps = self.steps(program, levels, shape, nbytes)
            seconds = sum(self.seconds(*step) for step in steps)
            if seconds < min(best.seconds, flat * (1 - _WORTH)):
                text = text_of(program, names)
                best = _Choice(tuple(levels), program, seconds, flat, text)
        return best

    def steps(
        self,
        program: ReductionProgram,
        levels: Sequence[tuple[str, ...]],
        shape: tuple[int, ...],
        nbytes: float,
    ) -> list[tuple[str, tuple[str, ...], float]]:
        """The collectives of a program on an array, as (kind, axes, bytes of the whole array).

        Args:
          program: the steps.
          levels: the axes of each level, innermost first.
          shape: of the array on a device.
          nbytes: of it.
        """
        axes_of = [tuple(a for i in on for a in levels[i]) for _, on in program]
        counts = [math.prod(self.mesh[a] for a in axes) for axes in axes_of]
        kinds = [step.kind for step in program]
        scattered = (n for kind, n in zip(kinds, counts, strict=True) if kind == "reduce_scatter")
        dim, padding = scattered_dim(shape, math.prod(scattered))
        held = nbytes * (1 + padding / max(shape[dim], 1))
        found = []
        for kind, axes, count in zip(kinds, axes_of, counts, strict=True):
            whole = held * count if kind == "all_gather" else held
            found.append((kind, axes, whole))
            held = {"all_gather": whole, "reduce_scatter": held / count}.get(kind, held)
        return found

    def collectives(self, program: Program, synthesised: bool) -> float:
        """Seconds of all collectives of a program, one after the other."""
        total = 0.0
        for op, times in program.walk_counted():
            if op.name in COLLECTIVES:
                if synthesised and summable(op):
                    total += times * self.best(op).seconds
                    continue
                whole = op.outputs if op.name == "all_gather" else op.inputs
                nbytes = float(sum(v.nbytes for v in whole))
                total += times * self.seconds(op.name, self.axes(op.params["axes"]), nbytes)
        return total

    def reduced(
        self,
        program: Program,
        mesh: Mapping[str, int],
        donated: Collection[str],
        saved: Saved | None = None,
    ) -> Rewritten:
        """A program with its sums as the steps that are quickest, where that is quicker in all.

        Args:
          program: stays as it is.
          mesh: its axes.
          donated: names of donated arguments.
          saved: the result of an earlier call as plain data; made again instead of choosing.
        """
        if saved is not None:
            return self._reduced_as(program, mesh, donated, saved)
        before = self.simulator.predict(program, mesh, donated)
        kinds: list[_Choice] = []
        sums: list[int | None] = []

        def chosen(op: Op) -> tuple[Sequence[tuple[str, ...]], ReductionProgram] | None:
            choice = self.best(op)
            if choice.program is None:
                sums.append(None)
                return None
            if choice not in kinds:
                kinds.append(choice)
            sums.append(kinds.index(choice))
            return choice.levels, choice.program

        new = written(program, self.mesh, self.parts, chosen)
        was = before.predicted_seconds.total
        figures = {"mesh": dict(mesh), "programs": {}, "predicted_seconds_before": was}
        if kinds:
            after = self.in_parts.predict(new, self.mesh, donated)
            now = after.predicted_seconds.total
            if now < was:
                steps = collections.Counter(kinds[i].text for i in sums if i is not None)
                most = max(steps, key=steps.__getitem__)
                note = (
                    f"{sum(steps.values())} sums are carried out level by level, {steps[most]} of "
                    f"them as {most}: {now:.3g} s instead of {was:.3g}"
                )
                figures |= {"mesh": self.mesh, "programs": dict(steps)}
                recipe = {
                    "parts": {axis: dict(parts) for axis, parts in self.parts.items()},
                    "kinds": [kind.to_json() for kind in kinds],
                    "sums": sums,
                }
                return Rewritten(new, self.mesh, lambda: after, note, figures, recipe)
        note = "every sum is carried out at once: no other program is predicted to be quicker"
        return Rewritten(program, mesh, lambda: before, note, figures)

    def _reduced_as(
        self, program: Program, mesh: Mapping[str, int], donated: Collection[str], saved: Saved
    ) -> Rewritten:
        """Writes the program that `reduced` saved."""
        note, figures, recipe = saved["note"], saved["figures"], saved["recipe"]
        if not recipe:
            predict = functools.partial(self.simulator.predict, program, mesh, donated)
            return Rewritten(program, mesh, predict, note, figures)
        kinds, left = [*map(_steps_of, recipe["kinds"])], iter(recipe["sums"])

        def chosen(op: Op) -> tuple[Sequence[tuple[str, ...]], ReductionProgram] | None:
            number = next(left)
            return None if number is None else kinds[number]

        new = written(program, self.mesh, self.parts, chosen)
        predict = functools.partial(self.in_parts.predict, new, self.mesh, donated)
        return Rewritten(new, self.mesh, predict, note, figures, recipe)


def laid_out(placement: str | None) -> dict[str, Any]:
    """The arguments of `partition` for the option --placement of a command line.

    Raises:
      ValueError: for another word.
    """
    if placement not in (None, "auto"):
        raise ValueError(f"--placement is auto, or is not given; not {placement!r}")
    return {} if placement is None else {"placement": placement, "reductions": "synthesised"}


@dataclasses.dataclass(frozen=True)
class _Choice:
    """The steps of one sum.

    Attributes:
      levels: its axes on each level.
      program: the steps; None: at once.
      seconds: the time of the steps.
      flat: the time at once.
      text: the steps in words.
    """

    levels: tuple[tuple[str, ...], ...]
    program: ReductionProgram | None
    seconds: float
    flat: float
    text: str

    def to_json(self) -> dict[str, Any]:
        """Levels and steps as plain data."""
        steps = [[kind, list(levels)] for kind, levels in self.program or ()]
        return {"levels": [list(axes) for axes in self.levels], "steps": steps}


def _steps_of(saved: Saved) -> tuple[Sequence[tuple[str, ...]], ReductionProgram]:
    """The levels and steps of a choice that was saved."""
    steps = (ReductionStep(kind, tuple(levels)) for kind, levels in saved["steps"])
    return [tuple(axes) for axes in saved["levels"]], tuple(steps)


def hierarchy(
    simulator: Simulator, mesh: Mapping[str, int], matrix: PlacementMatrix | None = None
) -> Hierarchy:
    """A mesh on the simulator's topology, by a matrix or as it lies by itself."""
    topology = simulator.topology or topology_of(simulator.device, math.prod(mesh.values()))
    return Hierarchy(matrix or PlacementMatrix.of(mesh, topology), simulator, topology)


def placed(
    program: Program,
    mesh: Mapping[str, int],
    simulator: Simulator,
    donated: Collection[str] = (),
    synthesised: bool = False,
) -> Rewritten:
    """The placement with the least predicted time of a program.

    Args:
      program: a local program.
      mesh: its axes.
      simulator: judges; its topology is the hierarchy.
      donated: names of donated arguments.
      synthesised: True if its sums may run as steps.

    Raises:
      ValueError: the mesh does not fill the topology.
    """
    topology = simulator.topology or topology_of(simulator.device, math.prod(mesh.values()))
    able = [Hierarchy(matrix, simulator, topology) for matrix in placements(mesh, topology)]
    first = able[0]
    quickest = sorted(able, key=lambda h: h.collectives(program, synthesised))[:_JUDGED]

    def judged(one: Hierarchy) -> Simulation:
        if synthesised:
            return one.reduced(program, mesh, donated).simulation
        return one.simulator.predict(program, mesh, donated)

    costs = {id(one): judged(one) for one in dict.fromkeys([first, *quickest])}

    def rank(one: Hierarchy) -> float:
        return costs[id(one)].predicted_seconds.total

    best = min([first, *quickest], key=rank)
    before = first.simulator.predict(program, mesh, donated)
    after = best.simulator.predict(program, mesh, donated)
    was, now = rank(first), rank(best)
    if best is first:
        note = f"{best.matrix}, as by itself: the best of {len(able)} placements"
    else:
        note = f"{best.matrix}: the best of {len(able)}, {now:.3g} s instead of {was:.3g}"
    figures = {
        **best.matrix.to_json(),
        "order": list(best.matrix.order()),
        "placements": len(able),
        "predicted_seconds_before": before.predicted_seconds.total,
    }
    return Rewritten(program, mesh, lambda: after, note, figures)


def replaced(
    program: Program,
    mesh: Mapping[str, int],
    simulator: Simulator,
    donated: Collection[str],
    saved: Saved,
) -> Rewritten:
    """The placement that `placed` chose, from what its result saved."""
    lies = hierarchy(simulator, mesh, PlacementMatrix.from_json(saved["figures"]))
    predict = functools.partial(lies.simulator.predict, program, mesh, donated)
    return Rewritten(program, mesh, predict, saved["note"], saved["figures"])
