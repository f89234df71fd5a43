"""The record of a plan in the making, which passes extend, and the steps that they leave in it."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Mapping, Sequence
from typing import Any

from .decide.actions import Context, Tactic
from .decide.blockers import Blocker, blockers, unreached
from .decide.graph import Graph
from .decide.propagate import Conflict
from .decide.repropagate import Repropagation, summaries
from .decide.sharding import Decision, Decisions
from .ir.garbage import no_garbage_collection
from .ir.program import COLLECTIVES, Op, Program
from .ir.ragged import write_ragged
from .ir.verify import verify
from .judge import PlanJudge
from .lower.cleanup import clean_up
from .lower.lower import lower
from .mesh import Mesh
from .options import PlanOptions
from .pipelines.cutting import StepCuts
from .pipelines.execution.spmd import PipelineProgram
from .placement.matrix import PlacementMatrix
from .rematerialization.coshard import co_shard
from .rewritten import Rewritten
from .rules.canonical import canonicalize
from .simulator.presets import get_device
from .simulator.simulate import Simulation, amount

#: A schedule that splits less of the work over an axis is warned of, and told where it ends.
LITTLE = 0.5
#: The share of the work that has to follow a blocker for a printed plan to tell of it.
_TOLD_SHARE = 0.005


@dataclasses.dataclass(frozen=True)
class PlanMove:
    """One move of a tactic that searches.

    Attributes:
      text: its number, and the time that it is predicted to save.
      start, end: the lines of the plan's journal that it wrote.
    """

    text: str
    start: int
    end: int


@dataclasses.dataclass(frozen=True, eq=False)
class PlanStep:
    """The program after one tactic, or after a pass behind the tactics.

    Attributes:
      name: the tactic's name, or the pass's.
      axis: its mesh axis.
      conflicts: ops on which more than one factor fitted.
      notes: remarks, such as requests that the tactic could not meet and ops that run gathered.
      plan: the plan it belongs to.
      end: how many lines of the plan's journal were written up to here.
      repropagated: tilings that ended and were taken up again, where rows move.
      axes: its mesh axes, where it has several.
      moves: the moves that a tactic that searches decided on.
      log: the log of its search; None for other tactics.
      made: the program that a pass behind the tactics wrote; None for tactics.
    """

    name: str
    axis: str
    conflicts: tuple[Conflict, ...]
    notes: tuple[str, ...]
    plan: PlanRecord = dataclasses.field(repr=False)
    end: int
    repropagated: tuple[Repropagation, ...] = ()
    axes: tuple[str, ...] = ()
    moves: tuple[PlanMove, ...] = ()
    log: Any = None
    made: Rewritten | None = None

    @functools.cached_property
    def state(self) -> Decisions:
        """The decisions up to here."""
        state = self.plan.state
        return state if self.end == len(state.journal) else state.replay(self.end)

    @functools.cached_property
    @no_garbage_collection()
    def program(self) -> Program:
        """The local program after this step."""
        if self.made is not None:
            return self.made.program
        state = self.state
        program = lower(self.plan.graph, state)
        clean_up(program, state.mesh)
        verify(program, state.mesh)
        return program

    def with_notes(self, more: Sequence[str]) -> PlanStep:
        """The step with further notes; the program and its simulation are kept if they are made."""
        found = dataclasses.replace(self, notes=(*self.notes, *more))
        vars(found).update((k, v) for k, v in vars(self).items() if k in ("program", "simulation"))
        return found

    @property
    def mesh(self) -> Mapping[str, int]:
        """Sizes of the axes that the layouts of the program name."""
        return self.plan.mesh.axes if self.made is None else self.made.mesh

    @functools.cached_property
    def collectives(self) -> dict[str, int]:
        """The number of each collective, those in loops as often as the loop runs."""
        counts = dict.fromkeys(COLLECTIVES, 0)
        for op, times in self.program.walk_counted():
            if op.name in counts:
                counts[op.name] += times
        return counts

    @functools.cached_property
    def bytes_moved(self) -> dict[str, int]:
        """Bytes that each device sends for each kind of collective."""
        moved = dict.fromkeys(COLLECTIVES, 0)
        for op, times in self.program.walk_counted():
            if op.name in moved:
                moved[op.name] += times * bytes_sent(op, self.mesh)
        return moved

    @functools.cached_property
    def simulation(self) -> Simulation:
        """The simulator's prediction of the step: memory, FLOPs and time of one device."""
        return self.plan.judge.predict(self.program) if self.made is None else self.made.simulation

    @functools.cached_property
    def split(self) -> dict[str, float]:
        """The share of the step's floating point operations that is split over each axis that
        tactics used up to here.
        """
        plan = self.plan
        # One device, as it is before the first tactic, is no step of the plan.
        done = plan.steps[: plan.steps.index(self) + 1] if self in plan.steps else ()
        used = dict.fromkeys(axis for step in done for axis in step.axes)
        decisions = plan.state.journal[: self.end]
        return {a: plan.work.split(decisions, a) for a in used if plan.mesh.axes.get(a, 1) > 1}

    @functools.cached_property
    def blockers(self) -> tuple[Blocker, ...]:
        """The ends of tilings over the tactic's axes, those first that most of the work follows."""
        plan = self.plan
        found = [
            blockers(plan.graph, self.state, a, plan.work, self.split[a] < LITTLE)
            for a in self.axes
            if a in self.split
        ]
        return tuple(sorted((e for ends in found for e in ends), key=lambda e: -e.unsplit))

    def remarks(self) -> list[str]:
        """Lines that a printed plan has of the step, the gravest first."""
        shares = ", ".join(f"{axis}: {rounded_down(share)}" for axis, share in self.split.items())
        lines = [f"{shares} of the work is split"] if shares and self.made is None else []
        lines += [f"conflict: {c}" for c in self.conflicts]
        ends = [e for e in self.blockers if e.unsplit >= _TOLD_SHARE]
        lines += [str(e) for e in ends]
        told = {e.axis for e in ends} | {c.axis for c in self.conflicts}
        lines += [
            unreached(self.plan.graph, self.state, axis, self.plan.work)
            for axis in self.axes
            if self.log is None and self.split.get(axis, 1.0) < LITTLE and axis not in told
        ]
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
        """The figures of the step by name."""
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
            found[self.name] = dict(self.made.figures)
        return found


def rounded_down(share: float) -> str:
    """A share to two digits, and 1.00 only where it is all."""
    return f"{math.floor(share * 100 + 1e-9) / 100:.2f}"


def bytes_sent(op: Op, mesh: Mapping[str, int]) -> int:
    """Bytes one device sends for a collective done on a ring."""
    parts = math.prod(mesh[axis] for axis in op.params["axes"])
    sent = op.inputs[0].nbytes * (parts - 1)
    if op.name == "all_gather":
        return sent
    return (2 * sent if op.name == "all_reduce" else sent) // parts


def graph_of(program: Program, options: PlanOptions) -> Graph:
    """The graph of a traced step, whose ops are put into canonical form."""
    if get_device(options.simulator.device).kind != "tpu":
        write_ragged(program)
    canonicalize(program)
    if options.co_shard is not None:
        co_shard(program, options.co_shard, options.weights)
        canonicalize(program)
    return Graph(program, options.weights)


class PlanRecord:
    """A traced step, and the decisions of its passes so far.

    Args:
      graph: the traced step, which other plans may share.
      mesh: the mesh.
      schedule: tactics in order.
      options: the other options of the plan.

    Attributes:
      graph, mesh, schedule, options: as given; `graph.program` is the program.
      work: the floating point operations of the program's ops.
      state: every decision.
      judge: predicts costs while the plan is made.
      steps: one entry per tactic, in order, and one for each pass behind them that had to do.
      matrix: where the axes of the mesh were laid; None: they lie by themselves.
      pipeline: the step cut into stages; None where it is not.
      cuts: what pipelines over one axis, behind the same tactics, have in common; None without one.
      parts: the axes that are cut in the program that runs, each with its parts, outermost first.
    """

    def __init__(self, graph: Graph, mesh: Mesh, schedule: Sequence[Tactic], options: PlanOptions):
        self.mesh = mesh
        self.schedule = tuple(schedule)
        self.options = options
        self.graph = graph
        self.work = graph.work
        self.state = Decisions(mesh.axes)
        self.judge = PlanJudge(
            options.simulator, mesh.axes, options.donate, options.recompute, self.work,
            self.candidate,
        )  # fmt: skip
        #: The candidates of the present tactic's search, by their decisions.
        self._candidates: dict[tuple[Decision, ...], PlanStep] = {}
        self.steps: tuple[PlanStep, ...] = ()
        self.matrix: PlacementMatrix | None = None
        self.pipeline: PipelineProgram | None = None
        self.cuts: StepCuts | None = None
        self.parts: Mapping[str, Mapping[str, int]] = {}

    def context(self, names: Sequence[str]) -> Context:
        """Returns the context of the present tactic; `names` are those of the schedule."""
        return Context(self.graph, self.state, tuple(names), self.judge)

    def step(self, name: str, axis: str = "", **fields: Any) -> PlanStep:
        """A step of this plan that stands after every decision of now."""
        told = {"conflicts": (), "notes": (), "end": len(self.state.journal), **fields}
        return PlanStep(name, axis, plan=self, **told)

    def candidate(self) -> PlanStep:
        """The step that a search may take: the same one for the same decisions."""
        decisions = tuple(self.state.journal)
        found = self._candidates.get(decisions)
        if found is None:
            found = self._candidates[decisions] = self.step("candidate")
        return found

    def take_candidate(self, step: PlanStep) -> None:
        """Has a step take over what was computed of a candidate with its decisions; drops all."""
        found = self._candidates.get(tuple(self.state.journal))
        if found is not None:
            vars(step).update(program=found.program, simulation=found.simulation)
        self._candidates.clear()

    @property
    def donated(self) -> tuple[str, ...]:
        """Names of the donated arguments; results may take their memory."""
        return self.options.donate

    @property
    def program(self) -> Program:
        """The local program after the last step."""
        return self.steps[-1].program

    @property
    def whole(self) -> Program:
        """The last program with layouts over whole axes of the mesh, and not over parts of them."""
        return next(s.program for s in reversed(self.steps) if s.mesh == self.mesh.axes)
