"""Cuts the step of a plan into a pipeline: the pass behind the tactics."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

from ..decide.graph import Graph
from ..decide.sharding import Decisions
from ..ir.program import Op, Program
from ..rewritten import Rewritten, Saved
from ..simulator.attach import Simulator
from ..simulator.simulate import amount
from ..tactics.manual import path_pattern
from .checks import check_table
from .choosing import TriedTable, choose_table, told
from .costs import priced
from .execution.flat import nbytes_of
from .execution.spmd import PipelineProgram
from .pipeline import SEARCH, Pipeline
from .schedules.named import passes_of
from .schedules.transformations import interlaced
from .stages.chains import forward_passes
from .stages.dependence import in_microbatches
from .stages.microbatches import rows_of_device, without_microbatches
from .stages.segments import is_product
from .stages.staging import SplitStep, cut_step, op_seconds, split_step, spread_over
from .table import PipelineTable


class StepCuts:
    """Cuts a step by one table or another; the step of a number of micro-batches is split once, and
    its ops are timed once.

    Args:
      pipeline: the tactic that asks for it.
      graph: the traced step.
      state: the decisions of the tactics before it.
      simulator: predicts times, by which segments are balanced.
    """

    def __init__(
        self, pipeline: Pipeline, graph: Graph, state: Decisions, simulator: Simulator
    ) -> None:
        self.pipeline, self.graph, self.state = pipeline, graph, state
        self.simulator = simulator
        self.stages = state.mesh[pipeline.axis]
        self.rows = rows_of_device(graph, state, pipeline.inputs, pipeline.dim)
        self._split: dict[int, SplitStep] = {}
        self._seconds: dict[int, Mapping[Op, float]] = {}

    def of(self, pipeline: Pipeline) -> StepCuts:
        """The cuts of the same step as another pipeline over the axis asks for them; it is split
        anew only where that splits it otherwise.
        """
        found = StepCuts(pipeline, self.graph, self.state, self.simulator)
        own = self.pipeline
        if (pipeline.inputs, pipeline.dim) == (own.inputs, own.dim):
            found._split, found._seconds = self._split, self._seconds
        return found

    def split(self, microbatches: int) -> SplitStep:
        """The step of so many micro-batches."""
        if microbatches not in self._split:
            pipeline = self.pipeline
            self._split[microbatches] = split_step(
                self.graph, self.state, microbatches, pipeline.inputs, pipeline.dim
            )
        return self._split[microbatches]

    def seconds(self, microbatches: int) -> Mapping[Op, float]:
        """The predicted seconds of the ops of one of so many micro-batches."""
        if microbatches not in self._seconds:
            program = self.split(microbatches).program
            self._seconds[microbatches] = op_seconds(program, self.simulator, self.state.mesh)
        return self._seconds[microbatches]

    def forwards(self, microbatches: int) -> int:
        """The number of forward passes of the step that segments can be of."""
        dependence = self.split(microbatches).dependence
        return forward_passes(dependence, is_product, self.stages).count

    def program(self, table: PipelineTable, ends: Sequence[int] | None = None) -> PipelineProgram:
        """The step by a table; `ends` are of its segments where they were cut before.

        Raises:
          ValueError: it cannot be cut so, or the table cannot run it.
        """
        pipeline, axis, state = self.pipeline, self.pipeline.axis, self.state
        if table.microbatches < 2 and table.segments > 1:
            raise ValueError(
                f"the pipeline has {table.segments} segments and one micro-batch, so that one "
                f"stage would run at a time; each device has {self.rows} rows of the batch, of "
                "which it takes at least two parts"
            )
        split = self.split(table.microbatches)
        forwards = passes_of(table)
        spread = spread_over(split, state, axis)
        if spread is not None and forwards > 1:
            raise ValueError(
                f"another tactic tiles arrays over axis {axis!r}, and the table is of {forwards} "
                "forward passes; with these stages need an axis of their own"
            )
        several = self.stages > 1
        alone = sum(len(places) == 1 for places in table.placement) if several else table.segments
        known = functools.partial(self.seconds, table.microbatches) if ends is None else ends
        step = cut_step(split, alone // forwards, known, pipeline.cuts, forwards, spread)
        whole = step.segments.whole
        if whole and alone == table.segments:
            table = interlaced(table, step.edges, whole)
        on_all = tuple(i for i, places in enumerate(table.placement) if len(places) > 1)
        if on_all != whole:
            raise ValueError(
                f"the table runs segments {[*on_all]} on all devices of axis {axis!r}, and the "
                f"tactics before the pipeline tile the work of segments {[*whole]} over it"
            )
        check_table(table, step.edges)
        positions = {value: i for i, value in enumerate(self.graph.program.inputs)}
        pairs = [(positions[before], at) for before, _, at in self.graph.state]
        return PipelineProgram(step, table, axis, state.mesh, pairs, spread)


def cut(
    cuts: StepCuts, donated: Sequence[str], saved: Saved | None = None
) -> tuple[PipelineProgram, Sequence[TriedTable]]:
    """Cuts a step as a tactic asks.

    Args:
      cuts: of the step, for the tactic.
      donated: names of the donated arguments.
      saved: what `rewritten` of the same step told, which is cut again without a prediction.

    Returns:
      The step, and what a search tried for it, the best first.

    Raises:
      ImportError: a search is asked for, and OR-tools is not installed.
      ValueError: it cannot be cut so, or the table cannot run it.
    """
    pipeline = cuts.pipeline
    searches = pipeline.schedule == SEARCH
    if searches and saved is not None:
        table = PipelineTable.from_json(saved["figures"]["table"])
        return cuts.program(table, saved["recipe"]["ends"]), ()
    if searches:
        counts = pipeline.counts(cuts.stages, cuts.rows)
        tried = choose_table(
            cuts.program, cuts.stages, counts, cuts.forwards(counts[0]), cuts.simulator, donated
        )
        return tried[0].program, tried
    count = pipeline.count(cuts.stages, cuts.rows)
    forwards = cuts.forwards(count) if pipeline.schedule == "3f1b" else 1
    table = pipeline.table(cuts.stages, count, forwards)
    return cuts.program(table, None if saved is None else saved["recipe"]["ends"]), ()


def rewritten(
    program: PipelineProgram,
    simulator: Simulator,
    donated: Sequence[str],
    tried: Sequence[TriedTable] = (),
    saved: Saved | None = None,
) -> Rewritten:
    """The step as a plan shows it: with the cells of the stage that needs most memory.

    Args:
      program: the pipelined step.
      simulator: predicts its costs.
      donated: names of the donated arguments.
      tried: the tables that it was chosen of.
      saved: what this told of the same step, which is not predicted again.
    """
    costs = priced(program, simulator, donated)
    predicted = functools.cache(costs.simulation)
    if saved is not None:
        shown = _shown(program, saved["recipe"]["stage"])
        note, figures, recipe = (saved[key] for key in ("note", "figures", "recipe"))
        return Rewritten(shown, program.mesh, predicted, note, figures, recipe)
    table = program.table
    place = max(range(table.devices), key=costs.peaks.__getitem__)
    peaks = ", ".join(amount(peak, "B", 1024) for peak in costs.peaks)
    busy = ", ".join(f"{time / costs.seconds:.2f}" for time in costs.busy)
    message = max(
        (one.routes.nbytes(p) for one, _ in program.phases for p in one.routes.slots if p[1]),
        default=0,
    )
    count = sum(times for one, times in program.phases if not one.phase.is_empty)
    passes = f" in each of {count} phases" if count > 1 else ""
    own = ", ".join(amount(nbytes_of(one.sizes), "B", 1024) for one in program.owned)
    updated = {program.step.program.inputs[i] for i in program.shared} & set(program.state)
    everywhere = sum(value.nbytes for value in updated)
    note = (
        f"{table.segments} segments on {table.devices} stages, {table.microbatches} micro-batches "
        f"in {table.steps} steps{passes}; busy {busy} of the time; state {own} by stage and "
        f"{amount(everywhere, 'B', 1024)} on all; peaks {peaks}; messages of at most "
        f"{amount(message, 'B', 1024)}"
    )
    if tried:
        note += f"; {told(tried)}"
    figures = {
        "stages": table.devices,
        "segments": table.segments,
        "microbatches": table.microbatches,
        "steps": table.steps,
        "phases": count,
        "seconds": costs.seconds,
        "busy": list(costs.busy),
        "peak_memory_bytes": list(costs.peaks),
        "state_bytes": [nbytes_of(packing.sizes) for packing in program.owned],
        "shared_state_bytes": everywhere,
        "message_bytes": message,
        "table": table.to_json(),
        "tried": [one.to_json() for one in tried],
    }
    recipe = {"stage": place, "ends": list(program.step.segments.ends)}
    return Rewritten(_shown(program, place), program.mesh, predicted, note, figures, recipe)


def whereabouts(program: PipelineProgram, path: str) -> list[str]:
    """A line for each input at a path (or glob), which tells the devices that have it."""
    pattern = path_pattern(path)
    place = {v: i for i, packing in enumerate(program.owned) for v in packing.values}
    found = []
    for value in program.step.program.inputs:
        if pattern.fullmatch(value.path):
            on = f"stage {place[value]}" if value in place else "every stage"
            found.append(f"  pipeline: {value.path} lies on {on} of axis {program.axis!r}")
    return found


def _shown(program: PipelineProgram, place: int) -> Program:
    """A program of the cells of one device, as often as there are micro-batches, and the tail."""
    step, table = program.step, program.table
    whole = {
        v: without_microbatches(v, table.microbatches) if in_microbatches(v) else v
        for v in step.program.inputs
    }
    inputs = tuple(whole[v] for v in step.program.inputs)
    ops: list[Op] = []
    for one, times in program.phases:
        phase = one.phase
        if not phase.is_empty:
            dependence = phase.dependence
            results = tuple(op.outputs[0] for op in (*dependence.prepared, *dependence.totals))
            own = [t for t in one.routes.parcels if place in table.placement[t[0]]]
            regions = tuple(phase.cells[task].program for task in own)
            params: dict[str, Any] = {"length": table.microbatches * times, "stage": place}
            read = tuple(whole.get(v, v) for v in phase.program.inputs)
            ops.append(Op("pipeline", None, read, results, params, regions))
        ops += [op for op in phase.tail.ops if op not in ops]
    return Program(
        inputs, step.program.outputs, ops, step.program.constants, step.program.signature
    )
