"""Cuts the step of a plan into a pipeline: the pass behind the tactics."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

from ..decide.graph import Graph
from ..decide.sharding import Decisions
from ..ir.program import Op, Program
from ..rewritten import Rewritten, Saved
from ..simulator.attach import Simulator
from ..simulator.simulate import amount
from ..tactics.manual import path_pattern
from .checks import check_table
from .costs import PipelineCosts
from .execution.flat import nbytes_of
from .execution.spmd import PipelineProgram
from .pipeline import Pipeline
from .stages.dependence import in_microbatches
from .stages.microbatches import rows_of_device, without_microbatches
from .stages.staging import staged_step


def cut(
    pipeline: Pipeline,
    graph: Graph,
    state: Decisions,
    simulator: Simulator,
    saved: Saved | None = None,
) -> PipelineProgram:
    """Cuts a step as a tactic asks.

    Args:
      pipeline: the tactic.
      graph: the traced step.
      state: the decisions of the tactics before it.
      simulator: predicts times, by which segments are balanced.
      saved: what `rewritten` of the same step told, which is cut again without a prediction.

    Raises:
      ValueError: it cannot be cut so, or the table cannot run it.
    """
    axis = pipeline.axis
    used = {a for tiles in state.tiles.values() for a in tiles}
    if axis in used:
        raise ValueError(
            f"tactic {pipeline.name!r}: another tactic tiles arrays over axis {axis!r}; stages "
            "need an axis of their own"
        )
    inputs, dim = pipeline.inputs, pipeline.dim
    table = pipeline.table(state.mesh[axis], rows_of_device(graph, state, inputs, dim))
    ends = None if saved is None else saved["recipe"]["ends"]
    step = staged_step(
        graph, state, table.segments, table.microbatches, simulator, inputs, dim, ends,
        pipeline.cuts,
    )  # fmt: skip
    for phase in step.phases:
        check_table(table, phase.edges)
    positions = {value: i for i, value in enumerate(graph.program.inputs)}
    pairs = [(positions[before], at) for before, _, at in graph.state]
    return PipelineProgram(step, table, axis, state.mesh, pairs)


def rewritten(
    program: PipelineProgram,
    simulator: Simulator,
    donated: Sequence[str],
    saved: Saved | None = None,
) -> Rewritten:
    """The step as a plan shows it: with the cells of the stage that needs most memory.

    Args:
      program: the pipelined step.
      simulator: predicts its costs.
      donated: names of the donated arguments.
      saved: what this told of the same step, which is not predicted again.
    """
    owned = {v.path.split("/")[0] for packing in program.owned for v in packing.values}
    costs = PipelineCosts(program, simulator, owned <= set(donated))
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
            own = [t for t in one.routes.parcels if table.placement[t[0]][0] == place]
            regions = tuple(phase.cells[task].program for task in own)
            params: dict[str, Any] = {"length": table.microbatches * times, "stage": place}
            read = tuple(whole.get(v, v) for v in phase.program.inputs)
            ops.append(Op("pipeline", None, read, results, params, regions))
        ops += [op for op in phase.tail.ops if op not in ops]
    return Program(
        inputs, step.program.outputs, ops, step.program.constants, step.program.signature
    )
