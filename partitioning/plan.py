"""A plan: what each tactic of a schedule did to a program, and what it takes to run the result."""

from __future__ import annotations

import dataclasses
import functools
import json
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax

from .decide.actions import Context, Tactic, axes_of, label
from .decide.blockers import Blocker, blockers
from .decide.flops import OpFlops
from .decide.graph import Graph
from .decide.propagate import Conflict
from .decide.repropagate import Repropagation, apply_tactic, summaries
from .decide.sharding import Decisions
from .explain import explain, table
from .ir.execute import spec_of
from .ir.garbage import no_garbage_collection
from .ir.program import COLLECTIVES, Op, Program
from .ir.verify import verify
from .judge import PlanJudge
from .lower.cleanup import clean_up
from .lower.lower import lower
from .mesh import Mesh
from .placement.matrix import PlacementMatrix
from .placement.place import PlacedProgram, ReducedProgram, hierarchy, placed
from .rematerialization.recompute import Recompute, Recomputed
from .rules import traits_of
from .rules.canonical import canonicalize
from .simulator.attach import Simulator
from .simulator.simulate import Simulation, amount
from .simulator.timing import Event


@dataclasses.dataclass(frozen=True)
class PlanMove:
    """One move of a tactic that searches.

    Attributes:
      text: which it is, and what it is thought to save.
      start, end: the lines of the plan's journal that it wrote.
    """

    text: str
    start: int
    end: int


@dataclasses.dataclass(frozen=True, eq=False)
class PlanStep:
    """The program after one tactic.

    Attributes:
      name: the tactic's name.
      axis: its mesh axis.
      conflicts: ops on which more than one factor fitted.
      notes: what the tactic could not do, and what runs gathered.
      plan: the plan it belongs to.
      decisions: how many lines of the plan's journal were written up to here.
      repropagated: tilings that ended and were taken up again, where rows move.
      axes: its mesh axes, where it has several.
      moves: what a tactic that searches decided, move by move.
      log: what it tried; None for other tactics.
      made: what it made of the program before it, where it is a step after the tactics: which
        computes activations again, places the mesh, or carries out sums step by step.
    """

    name: str
    axis: str
    conflicts: tuple[Conflict, ...]
    notes: tuple[str, ...]
    plan: Plan = dataclasses.field(repr=False)
    decisions: int
    repropagated: tuple[Repropagation, ...] = ()
    axes: tuple[str, ...] = ()
    moves: tuple[PlanMove, ...] = ()
    log: Any = None
    made: Recomputed | PlacedProgram | ReducedProgram | None = None

    @functools.cached_property
    def state(self) -> Decisions:
        """What was decided up to here."""
        state = self.plan.state
        return state if self.decisions == len(state.journal) else state.replay(self.decisions)

    @functools.cached_property
    @no_garbage_collection()
    def program(self) -> Program:
        """The local program after this tactic."""
        if self.made is not None:
            return self.made.program
        state = self.state
        program = lower(self.plan.graph, state)
        clean_up(program, state.mesh)
        verify(program, state.mesh)
        return program

    @functools.cached_property
    def collectives(self) -> dict[str, int]:
        """How many of each collective run, those in loops as often as the loop."""
        counts = dict.fromkeys(COLLECTIVES, 0)
        for op, times in self.program.walk_counted():
            if op.name in counts:
                counts[op.name] += times
        return counts

    @functools.cached_property
    def bytes_moved(self) -> dict[str, int]:
        """Bytes that each device sends for each kind of collective."""
        moved = dict.fromkeys(COLLECTIVES, 0)
        mesh = self.made.mesh if isinstance(self.made, ReducedProgram) else self.plan.mesh.axes
        for op, times in self.program.walk_counted():
            if op.name in moved:
                moved[op.name] += times * bytes_sent(op, mesh)
        return moved

    @functools.cached_property
    def simulation(self) -> Simulation:
        """What the simulator says of the step: memory, FLOPs and time of one device."""
        return self.plan.simulate(self) if self.made is None else self.made.simulation

    @functools.cached_property
    def split(self) -> dict[str, float]:
        """The share of the step's floating point operations that is split over each axis that
        tactics used up to here.
        """
        plan = self.plan
        # One device, as it is before the first tactic, is no step of the plan.
        done = plan.steps[: plan.steps.index(self) + 1] if self in plan.steps else ()
        used = dict.fromkeys(axis for step in done for axis in step.axes)
        decisions = plan.state.journal[: self.decisions]
        return {a: plan.work.split(decisions, a) for a in used if plan.mesh.axes.get(a, 1) > 1}

    @functools.cached_property
    def blockers(self) -> tuple[Blocker, ...]:
        """Where tilings over the tactic's axes end, those first that most of the work follows."""
        plan = self.plan
        found = [
            blockers(plan.graph, self.state, a, plan.work) for a in self.axes if a in self.split
        ]
        return tuple(sorted((e for ends in found for e in ends), key=lambda e: -e.unsplit))

    def remarks(self) -> list[str]:
        """Lines that a printed plan has of the step, the gravest first."""
        shares = ", ".join(f"{axis}: {_down(share)}" for axis, share in self.split.items())
        lines = [f"{shares} of the work is split"] if shares and self.made is None else []
        lines += [f"conflict: {c}" for c in self.conflicts]
        lines += [str(e) for e in self.blockers if e.unsplit >= _TOLD_SHARE]
        return lines + list(self.notes) + summaries(self.repropagated)

    def columns(self) -> dict[str, str]:
        """Title to text of what a printed plan says of the step."""
        return {
            "tactic": self.name,
            "axis": self.axis,
            **{name: str(count) for name, count in self.collectives.items()},
            "sent": amount(sum(self.bytes_moved.values()), "B", 1024),
            "conflicts": str(len(self.conflicts)),
            **self.simulation.columns(),
        }

    def to_json(self) -> dict[str, Any]:
        found = {
            "name": self.name,
            "axis": self.axis,
            "collectives": self.collectives,
            "bytes_moved": self.bytes_moved,
            "conflicts": [str(c) for c in self.conflicts],
            "notes": list(self.notes),
            "split": self.split,
            "blockers": [str(e) for e in self.blockers],
            "repropagated": summaries(self.repropagated),
            "simulation": self.simulation.to_json(),
        }
        if self.log is not None:
            found["search"] = self.log.to_json()
        if self.made is not None:
            found[self.name] = self.made.to_json()
        return found


#: The share of the work that has to follow a blocker for a printed plan to tell of it.
_TOLD_SHARE = 0.005
#: A schedule that splits less of the work over an axis is warned of.
_LITTLE = 0.5


def _down(share: float) -> str:
    """A share to two digits, and 1.00 only where it is all."""
    return f"{math.floor(share * 100 + 1e-9) / 100:.2f}"


def bytes_sent(op: Op, mesh: Mapping[str, int]) -> int:
    """Bytes one device sends for a collective done on a ring."""
    parts = math.prod(mesh[axis] for axis in op.params["axes"])
    sent = op.inputs[0].nbytes * (parts - 1)
    if op.name == "all_gather":
        return sent
    return (2 * sent if op.name == "all_reduce" else sent) // parts


class Plan:
    """How a step is partitioned.

    Attributes:
      mesh: the mesh.
      graph: the traced program with its rules; `graph.program` is the program.
      state: every decision.
      steps: one entry per tactic, in order.
      simulate: what simulates a step; by default `Simulator()`.
      donated: names of the donated arguments, whose memory results may take.
      work: the floating point operations of the program's ops.
      recompute: what memory it is to keep to by computing activations again; None: as it comes.
      judge: what the plan is simulated with while it is made.
      matrix: where the axes of the mesh were laid; None: they lie by themselves.
      parts: the axes that are cut in the program that runs, each with its parts, outermost first.
      whole: the program that runs as it was before axes were cut; its layouts name the mesh's axes.
    """

    def __init__(
        self,
        program: Program,
        mesh: Mesh,
        schedule: Sequence[Tactic],
        simulate: Callable[[PlanStep], Simulation] | None = None,
        donated: Sequence[str] = (),
        recompute: Recompute | None = None,
        placement: str | None = None,
        reductions: str = "flat",
    ):
        self.mesh = mesh
        self.recompute = recompute
        self.donated = tuple(donated)
        canonicalize(program)
        self.graph = Graph(program)
        self.work = OpFlops(self.graph)
        self.state = Decisions(mesh.axes)
        self.simulate = Simulator() if simulate is None else simulate
        self.judge = PlanJudge(
            self.simulate, mesh.axes, self.donated, self.work, recompute, self._candidate,
        )  # fmt: skip
        names = tuple(tactic.name for tactic in schedule)
        steps: list[PlanStep] = []
        for index, tactic in enumerate(schedule):
            self.state.tactic = index
            steps.append(self._step(tactic, names))
        if not steps:
            steps.append(PlanStep("unpartitioned", "", (), (), self, 0))
        last = steps[-1]
        steps[-1] = dataclasses.replace(last, notes=last.notes + tuple(self._gathered()))
        if recompute is not None:
            judge = self.judge
            made = recompute.fit(steps[-1].program, judge.device, self.donated, judge.predict)
            steps.append(self._further("recompute", made))
        self.matrix: PlacementMatrix | None = None
        self.parts: Mapping[str, Mapping[str, int]] = {}
        self._lay_out(steps, placement == "auto", reductions == "synthesised")
        self.steps: tuple[PlanStep, ...] = tuple(steps)

    def context(self, names: tuple[str, ...]) -> Context:
        """What the tactic whose turn it is sees, where these are the names of the schedule's."""
        return Context(self.graph, self.state, names, self.judge)

    def _candidate(self) -> PlanStep:
        """What was decided so far, as if nothing came after it."""
        return PlanStep("candidate", "", (), (), self, len(self.state.journal))

    def _step(self, tactic: Tactic, names: tuple[str, ...]) -> PlanStep:
        """Enters one tactic."""
        context = self.context(names)
        search = getattr(tactic, "search", None)
        found = search(context) if callable(search) else None
        conflicts: list[Conflict] = []
        repropagated: list[Repropagation] = []
        moves: list[PlanMove] = []
        for part in (tactic,) if found is None else found.moves:
            start = len(self.state.journal)
            left, again = apply_tactic(context, part.actions(context), part.axis, self.work)
            conflicts += left
            repropagated += again
            if found is not None:
                text = found.log.saving(len(moves))
                moves.append(PlanMove(text, start, len(self.state.journal)))
        if len(moves) > 1:  # What one move left open another may have settled.
            factors = self.state.factors
            conflicts = [c for c in conflicts if c.axis not in factors.get(c.node, ())]
        return PlanStep(
            tactic.name, tactic.axis, tuple(conflicts), tuple(context.notes), self,
            len(self.state.journal), tuple(repropagated), axes_of(tactic), tuple(moves),
            None if found is None else found.log,
        )  # fmt: skip

    def _further(self, name: str, made: Recomputed | PlacedProgram | ReducedProgram) -> PlanStep:
        """A step after the tactics."""
        mesh = made.mesh if isinstance(made, ReducedProgram) else self.mesh.axes
        verify(made.program, mesh)
        return PlanStep(name, "", (), (made.note,), self, len(self.state.journal), made=made)

    def _lay_out(self, steps: list[PlanStep], place: bool, synthesise: bool) -> None:
        """Where the axes lie, and how sums run there."""
        simulator, axes = self.judge.simulator, self.mesh.axes
        self.whole = steps[-1].program
        if place:
            found = placed(self.whole, axes, simulator, self.donated, synthesise)
            self.matrix = found.matrix
            steps.append(self._further("placement", found))
        if synthesise:
            lies = hierarchy(simulator, axes, self.matrix)
            made = lies.reduced(self.whole, axes, self.donated)
            self.parts = made.parts
            steps.append(self._further("reductions", made))

    def _gathered(self) -> list[str]:
        """A line for each op without a rule that gets operands which are tiled, and for each that
        calls the host.
        """
        found: dict[str, None] = {}
        for op, loops in self.graph.unruled:
            tiled = [v for v in op.inputs if any(self.state.layout(v))]
            host = traits_of(op.name).host and self.mesh.size > 1
            if host and any(type(e).__name__ == "OrderedDebugEffect" for e in op.effects):
                raise ValueError(
                    f"{op.name} at {op.source or 'an unknown line'} is ordered, which jax does not "
                    "do on several devices; use ordered=False, or "
                    "jax.experimental.io_callback(..., ordered=True)"
                )
            if tiled or host:
                why = "is called on the first device alone" if host else "has no rule"
                names = ", ".join(label(v) for v in tiled)
                gathered = f": {names} gathered" if tiled else ""
                inside = ", once per turn of the loop it is in" if loops else ""
                found[f"{op.name} at {op.source or 'an unknown line'} {why}{gathered}{inside}"] = (
                    None
                )
        return list(found)

    @property
    def order(self) -> tuple[int, ...] | None:
        """Of every place of the mesh, which of its devices stands there; None: they stay."""
        return None if self.matrix is None else self.matrix.order()

    @property
    def program(self) -> Program:
        """The local program after the last tactic."""
        return self.steps[-1].program

    @property
    def collectives(self) -> dict[str, int]:
        return self.steps[-1].collectives

    @property
    def bytes_moved(self) -> dict[str, int]:
        return self.steps[-1].bytes_moved

    @property
    def conflicts(self) -> tuple[Conflict, ...]:
        """The conflicts of every step."""
        return tuple(c for step in self.steps for c in step.conflicts)

    @functools.cached_property
    def input_shardings(self) -> Any:
        """PartitionSpecs: a tuple of one pytree per argument."""
        signature = self.graph.program.signature
        assert signature is not None
        specs = [spec_of(v.layout or ()) for v in self.whole.inputs]
        trees, start = [], 0
        for tree, end in zip(signature.in_trees, signature.ends, strict=True):
            trees.append(jax.tree_util.tree_unflatten(tree, specs[start:end]))
            start = end
        return tuple(trees)

    @functools.cached_property
    def output_shardings(self) -> Any:
        """PartitionSpecs in the result's pytree."""
        signature = self.graph.program.signature
        assert signature is not None
        specs = [spec_of(v.layout or ()) for v in self.whole.outputs]
        return jax.tree_util.tree_unflatten(signature.out_tree, specs)

    @property
    def warnings(self) -> tuple[str, ...]:
        """A line for each axis over which the schedule splits under half of the work."""
        return tuple(
            f"{_down(share)} of the work is split over {axis}={self.mesh.axes[axis]}; every device "
            "of the axis does the rest"
            for axis, share in self.steps[-1].split.items()
            if share < _LITTLE
        )

    def timeline(self) -> tuple[Event, ...]:
        """Kernels and collectives of the last step's program in order, with start and duration."""
        return tuple(self.steps[-1].simulation.timing.events)

    def explain(self, path: str) -> str:
        """Why the arrays at a path (or glob) are sharded as they are, tactic by tactic.

        Raises:
          ValueError: where the path matches no input, output or tag.
        """
        tactics = [step.name for step in self.steps]
        # The last step of an axis knows what later tactics took up.
        ended = {a: [e for e in s.blockers if e.axis == a] for s in self.steps for a in s.axes}
        ends = [e for found in ended.values() for e in found]
        rows = [r for step in self.steps for r in step.repropagated]
        moves = [(m.start, m.end, m.text) for step in self.steps for m in step.moves]
        return explain(path, self.graph, self.state, tactics, self.conflicts, ends, rows, moves)

    def to_json(self) -> str:
        """The plan as JSON text: mesh, one device, steps, and the sharding of every input."""
        inputs = {
            v.path: {
                "shape": list(v.shape),
                "dtype": getattr(v.dtype, "name", str(v.dtype)),
                "sharding": [list(axes) for axes in self.state.layout(v)],
            }
            for v in self.graph.program.inputs
        }
        found = {
            "mesh": self.mesh.axes,
            "one_device": self.one_device.to_json(),
            "steps": [s.to_json() for s in self.steps],
            "warnings": list(self.warnings),
            "inputs": inputs,
        }
        return json.dumps(found, indent=2)

    @functools.cached_property
    def one_device(self) -> PlanStep:
        """The program before the first tactic: whole, as one device would run it."""
        return PlanStep("one device", "", (), (), self, 0)

    def rows(self) -> tuple[PlanStep, ...]:
        """The steps, after one device, where the first of them is not just that."""
        alone = () if self.steps[0].decisions == 0 else (self.one_device,)
        return (*alone, *self.steps)

    def __str__(self) -> str:
        return self.text(self.steps)

    def text(self, rows: Sequence[PlanStep]) -> str:
        """The plan in words, with a table of these steps."""
        lines = [f"mesh {self.mesh}, {len(self.graph.program.inputs)} inputs"]
        lines.append(table([step.columns() for step in rows], left=("tactic", "axis")))
        for step in self.steps:
            if step.log is not None:
                lines += [f"  {step.name}: {text}" for text in step.log.lines()]
            shown = step.remarks()
            lines += [f"  {step.name}: {text}" for text in shown[:7]]
            if len(shown) > 7:
                lines.append(f"  {step.name}: and {len(shown) - 7} more")
        lines += [f"warning: {text}" for text in self.warnings]
        return "\n".join(lines)
