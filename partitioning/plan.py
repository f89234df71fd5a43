"""A plan: the effect of each tactic of a schedule on a program, and the means to run the result."""

from __future__ import annotations

import functools
import json
from collections.abc import Sequence
from typing import Any

import jax

from .decide.actions import Tactic
from .decide.graph import Graph
from .decide.propagate import Conflict
from .decisions import PlanDecisions
from .explain import explain, table
from .ir.execute import spec_of
from .mesh import Mesh
from .options import PlanOptions
from .passes import PASSES
from .pipelines.cutting import StepCuts, whereabouts
from .pipelines.pipeline import Pipeline
from .record import LITTLE, PlanRecord, PlanStep, rounded_down
from .simulator.errors import error_of
from .simulator.timing import Event


class Plan(PlanRecord):
    """The partitioning of a step: a record that every pass has been over.

    Args:
      graph: the traced step, which other plans may share.
      mesh: the mesh.
      schedule: tactics in order.
      options: the other options of the plan.
      decisions: carried out instead of deciding anew, if given.
      cuts: of a plan with the same tactics before its pipeline, if given.

    Raises:
      ValueError: a pass cannot do its work, or the decisions belong to another step.
    """

    def __init__(
        self,
        graph: Graph,
        mesh: Mesh,
        schedule: Sequence[Tactic] = (),
        options: PlanOptions | None = None,
        decisions: PlanDecisions | None = None,
        cuts: StepCuts | None = None,
    ):
        options = options or PlanOptions()
        if decisions is not None:
            options = decisions.options(options)
        super().__init__(graph, mesh, schedule, options)
        self.cuts = cuts
        if decisions is not None:
            decisions.check(self)
        for each in PASSES:
            if decisions is None:
                each.decide(self)
            else:
                each.restore(self, decisions.passes[each.name])

    def with_pipeline(self, pipeline: Pipeline) -> Plan:
        """The plan of the same tactics with another pipeline over the axis of this one's; what does
        not depend on its table is not found again.

        Raises:
          ValueError: this plan has no pipeline, or the step cannot be cut so.
        """
        if self.cuts is None or self.cuts.pipeline.axis != pipeline.axis:
            raise ValueError(f"the plan has no pipeline over axis {pipeline.axis!r}")
        schedule = (*self.schedule[:-1], pipeline)
        return Plan(self.graph, self.mesh, schedule, self.options, cuts=self.cuts)

    @functools.cached_property
    def decisions(self) -> PlanDecisions:
        """All that was decided, as a value that travels; `pt.partition` takes it."""
        return PlanDecisions.of(self, {each.name: each.decided(self) for each in PASSES})

    def summary(self) -> dict[str, Any]:
        """The plan in a few plain values, to compare, log and write into files: mesh, schedule,
        collectives, bytes sent, peak bytes, predicted seconds, donated arguments, device.
        """
        cost = self.steps[-1].simulation
        return {
            "mesh": dict(self.mesh.axes),
            "schedule": [f"{tactic.name}:{tactic.axis}" for tactic in self.schedule],
            "collectives": dict(self.collectives),
            "bytes_moved": dict(self.bytes_moved),
            "peak_memory_bytes": cost.peak_memory_bytes,
            "predicted_seconds": cost.predicted_seconds.total,
            "donated": list(self.donated),
            "device": cost.device.name,
        }

    @property
    def order(self) -> tuple[int, ...] | None:
        """Of every place of the mesh, which of its devices stands there; None: they stay."""
        return None if self.matrix is None else self.matrix.order()

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
        """A line for each axis over which the schedule splits under half of the work.

        There is none of an axis that a search left alone: its log says that this is quickest.
        """
        last = {axis: step for step in self.steps for axis in step.axes}
        chosen = {a for a, step in last.items() if step.log and not step.log.judged[0].moves}
        return tuple(
            f"{rounded_down(share)} of the work is split over {axis}={self.mesh.axes[axis]}; every "
            "device of the axis does the rest"
            for axis, share in self.steps[-1].split.items()
            if share < LITTLE and axis not in chosen
        )

    def timeline(self) -> tuple[Event, ...]:
        """Kernels and collectives of the last step's program in order, with start and duration."""
        return tuple(self.steps[-1].simulation.timing.events)

    def explain(self, path: str) -> str:
        """Explains why the arrays at a path (or glob) are sharded as they are, tactic by tactic.

        Raises:
          ValueError: where the path matches no input, output or tag.
        """
        tactics = [step.name for step in self.steps]
        # The last step of an axis knows what later tactics took up.
        ended = {a: [e for e in s.blockers if e.axis == a] for s in self.steps for a in s.axes}
        ends = [e for found in ended.values() for e in found]
        rows = [r for step in self.steps for r in step.repropagated]
        moves = [(m.start, m.end, m.text) for step in self.steps for m in step.moves]
        text = explain(path, self.graph, self.state, tactics, self.conflicts, ends, rows, moves)
        stages = [] if self.pipeline is None else whereabouts(self.pipeline, path)
        return "\n".join([text, *stages])

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
        return self.step("one device", end=0)

    def rows(self) -> tuple[PlanStep, ...]:
        """The steps, after one device, where the first of them is not just that."""
        alone = () if self.steps[0].end == 0 else (self.one_device,)
        return (*alone, *self.steps)

    def __str__(self) -> str:
        return self.text(self.steps)

    def text(self, rows: Sequence[PlanStep]) -> str:
        """The plan in words, with a table of these steps."""
        lines = [f"mesh {self.mesh}, {len(self.graph.program.inputs)} inputs"]
        columns = [step.columns() for step in rows]
        costs = [step.simulation for step in rows]
        error = error_of(costs[-1].device)
        for row, before, cost in zip(columns[1:], costs, costs[1:], strict=False):
            times = (one.predicted_seconds.total for one in (before, cost))
            row["seconds"] = "~ " * error.alike(*times) + row["seconds"]
        lines.append(table(columns, left=("tactic", "axis")))
        if any(row["seconds"].startswith("~") for row in columns):
            lines.append("~: as long as the row above, within the error of predictions")
        lines.append(costs[-1].assumptions())
        for step in self.steps:
            if step.log is not None:
                lines += [f"  {step.name}: {text}" for text in step.log.lines()]
            shown = step.remarks()
            lines += [f"  {step.name}: {text}" for text in shown[:7]]
            if len(shown) > 7:
                lines.append(f"  {step.name}: and {len(shown) - 7} more")
        lines += [f"warning: {text}" for text in self.warnings]
        return "\n".join(lines)
