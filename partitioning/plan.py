"""A plan: what each tactic of a schedule did to a program, and what it takes to run the result."""

from __future__ import annotations

import dataclasses
import functools
import json
from collections.abc import Callable, Sequence
from typing import Any

import jax

from .decide.actions import Context, Tactic, apply, label
from .decide.graph import Graph
from .decide.propagate import Conflict, propagate
from .decide.sharding import Decisions
from .explain import explain, table
from .ir.execute import spec_of
from .ir.program import COLLECTIVES, Op, Program
from .ir.verify import verify
from .lower.cleanup import clean_up
from .lower.lower import lower
from .mesh import Mesh
from .simulator.attach import Simulator
from .simulator.simulate import Simulation, amount
from .simulator.timing import Event


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
    """

    name: str
    axis: str
    conflicts: tuple[Conflict, ...]
    notes: tuple[str, ...]
    plan: Plan = dataclasses.field(repr=False)
    decisions: int

    @functools.cached_property
    def program(self) -> Program:
        """The local program after this tactic."""
        state = self.plan.state
        if self.decisions < len(state.journal):
            state = state.replay(self.decisions)
        program = lower(self.plan.graph, state, self.plan.gather_again)
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
        for op, times in self.program.walk_counted():
            if op.name in moved:
                moved[op.name] += times * bytes_sent(op, self.plan.mesh.axes)
        return moved

    @functools.cached_property
    def simulation(self) -> Simulation:
        """What the simulator says of the step: memory, FLOPs and time of one device."""
        return self.plan.simulate(self)

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
        return {
            "name": self.name,
            "axis": self.axis,
            "collectives": self.collectives,
            "bytes_moved": self.bytes_moved,
            "conflicts": [str(c) for c in self.conflicts],
            "notes": list(self.notes),
            "simulation": self.simulation.to_json(),
        }


def bytes_sent(op: Op, mesh: Any) -> int:
    """Bytes one device sends for a collective done on a ring."""
    parts = 1
    for axis in op.params["axes"]:
        parts *= mesh[axis]
    (value,) = op.inputs
    if op.name == "all_gather":
        return value.nbytes * (parts - 1)
    if op.name == "all_reduce":
        return 2 * value.nbytes * (parts - 1) // parts
    return value.nbytes * (parts - 1) // parts


class Plan:
    """How a step is partitioned.

    Attributes:
      mesh: the mesh.
      graph: the traced program with its rules; `graph.program` is the program.
      state: every decision.
      steps: one entry per tactic, in order.
      gather_again: whether the backward pass gathers again what the forward pass gathered.
      simulate: what simulates a step; by default `Simulator()`.
      donated: names of the donated arguments, whose memory results may take.
    """

    def __init__(
        self,
        program: Program,
        mesh: Mesh,
        schedule: Sequence[Tactic],
        gather_again: bool = False,
        simulate: Callable[[PlanStep], Simulation] | None = None,
        donated: Sequence[str] = (),
    ):
        self.mesh = mesh
        self.donated = tuple(donated)
        self.graph = Graph(program)
        self.state = Decisions(mesh.axes)
        self.gather_again = gather_again
        self.simulate = Simulator() if simulate is None else simulate
        names = tuple(tactic.name for tactic in schedule)
        steps: list[PlanStep] = []
        for index, tactic in enumerate(schedule):
            self.state.tactic = index
            context = Context(self.graph, self.state, names)
            seeds = apply(context, tactic.actions(context))
            conflicts = propagate(self.graph, self.state, seeds)
            steps.append(
                PlanStep(
                    tactic.name, tactic.axis, tuple(conflicts), tuple(context.notes), self,
                    len(self.state.journal),
                )
            )  # fmt: skip
        if not steps:
            steps.append(PlanStep("unpartitioned", "", (), (), self, 0))
        last = steps[-1]
        steps[-1] = dataclasses.replace(last, notes=last.notes + tuple(self._gathered()))
        self.steps: tuple[PlanStep, ...] = tuple(steps)

    def _gathered(self) -> list[str]:
        """A line for each op without a rule that gets operands which are tiled."""
        found: dict[str, None] = {}
        for op, loops in self.graph.unruled:
            tiled = [v for v in op.inputs if any(self.state.layout(v))]
            if tiled:
                inside = ", once per turn of the loop it is in" if loops else ""
                found[
                    f"{op.name} at {op.source or 'an unknown line'} has no rule: "
                    f"{', '.join(label(v) for v in tiled)} gathered{inside}"
                ] = None
        return list(found)

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
        specs = [spec_of(v.layout or ()) for v in self.program.inputs]
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
        specs = [spec_of(v.layout or ()) for v in self.program.outputs]
        return jax.tree_util.tree_unflatten(signature.out_tree, specs)

    def timeline(self) -> tuple[Event, ...]:
        """Kernels and collectives of the last step's program in order, with start and duration."""
        return tuple(self.steps[-1].simulation.timing.events)

    def explain(self, path: str) -> str:
        """Why the arrays at a path (or glob) are sharded as they are, tactic by tactic.

        Raises:
          ValueError: where the path matches no input, output or tag.
        """
        tactics = [step.name for step in self.steps]
        return explain(path, self.graph.program, self.state, tactics, self.conflicts)

    def to_json(self) -> str:
        """The plan as JSON text: mesh, steps, and the sharding of every input."""
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
            "steps": [s.to_json() for s in self.steps],
            "inputs": inputs,
        }
        return json.dumps(found, indent=2)

    def __str__(self) -> str:
        lines = [f"mesh {self.mesh}, {len(self.graph.program.inputs)} inputs"]
        lines.append(table([step.columns() for step in self.steps], left=("tactic", "axis")))
        for step in self.steps:
            shown = [f"conflict: {c}" for c in step.conflicts] + list(step.notes)
            lines += [f"  {step.name}: {text}" for text in shown[:6]]
            if len(shown) > 6:
                lines.append(f"  {step.name}: and {len(shown) - 6} more")
        return "\n".join(lines)
