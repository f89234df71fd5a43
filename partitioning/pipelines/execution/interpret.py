"""Runs a pipeline's table cell by cell on one device, as its meaning says: for tests and for
tables that are looked into.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax.numpy as jnp
from jax import lax

from ...ir.execute import Coordinates, evaluate
from ...ir.program import Op, Value
from ..stages.cells import CellProgram, StagedLoop, StagedPart, StagedPhase, StagedStep
from ..stages.dependence import in_microbatches
from ..stages.microbatches import MICROBATCH
from ..table import PipelineTable

#: The way two micro-batches' values become one.
COMBINE: Mapping[str, Callable[[Any, Any], Any]] = {
    "sum": operator.add, "max": jnp.maximum, "min": jnp.minimum,
    "and": jnp.logical_and, "or": jnp.logical_or,
}  # fmt: skip


def interpret(step: StagedStep, table: PipelineTable, args: Sequence[Any]) -> list[Any]:
    """Runs a step's cells in the order of a table.

    Args:
      step: without axes of a mesh.
      table: of as many segments.
      args: an array for each input of the step.

    Returns:
      An array for each output of the step.
    """
    given = dict(zip(step.program.inputs, args, strict=True))
    return _run_parts(step.parts, table, given)


def _run_parts(
    parts: Sequence[StagedPart], table: PipelineTable, given: Mapping[Value, Any]
) -> list[Any]:
    """Runs parts in order; returns the outputs of the last one."""
    known, results = dict(given), []
    for part in parts:
        if isinstance(part, StagedPhase):
            results = _run_phase(part, table, known)
            known.update(zip(part.program.outputs, results, strict=True))
        else:
            operands = [v.data if v.data is not None else known[v] for v in part.op.inputs]
            known.update(zip(part.op.outputs, _run_loop(part, table, operands), strict=True))
    return results


def _run_loop(loop: StagedLoop, table: PipelineTable, operands: list[Any]) -> list[Any]:
    consts, carries = loop.op.params["num_consts"], loop.op.params["num_carry"]
    fixed, carry, xs = (
        operands[:consts],
        operands[consts : consts + carries],
        operands[consts + carries :],
    )
    length = loop.op.params["length"]
    turns = range(length)[:: -1 if loop.op.params["reverse"] else 1]
    stacked: list[list[Any]] = []
    for turn in turns:
        inputs = [*fixed, *carry, *(x[turn] for x in xs)]
        results = _run_parts(loop.parts, table, dict(zip(loop.body.inputs, inputs, strict=True)))
        carry, ys = results[:carries], results[carries:]
        stacked.append(ys)
    stacked = stacked[:: -1 if loop.op.params["reverse"] else 1]
    return [*carry, *(jnp.stack(ys) for ys in zip(*stacked, strict=True))]


def _run_phase(phase: StagedPhase, table: PipelineTable, args: Mapping[Value, Any]) -> list[Any]:
    """Runs a phase's cells in the order of a table; returns its outputs."""
    count = table.microbatches
    given = {**args, **prepare(phase, args, count, {})}
    values: dict[tuple[Value, int], Any] = {}
    for row in table.cells:
        for cell in row:
            if cell is None:
                continue
            work, number = phase.cells[cell.segment, cell.work], cell.microbatch
            read = {v: values[v, number] for v in work.read}
            for value, result in run_cell(work, {**given, **read}, number, count, {}).items():
                values[value, number] = result
    totals = {
        op.outputs[0]: joined(op, jnp.stack([values[op.inputs[0], i] for i in range(count)]))
        for op in phase.dependence.totals
    }
    known = {**given, **totals}
    return evaluate(phase.tail, [known[v] for v in phase.tail.inputs])


def prepare(
    phase: StagedPhase, given: Mapping[Value, Any], count: int, mesh: Mapping[str, int]
) -> dict[Value, Any]:
    """Results of the whole batch that are computed before the first micro-batch.

    Args:
      phase: the phase.
      given: an array for each of its inputs that this reads.
      count: how many micro-batches there are.
      mesh: sizes of axes; within `shard_map` if there are any.
    """
    found: dict[Value, Any] = {}
    for op, cell in zip(phase.dependence.prepared, phase.prepared, strict=True):
        have = {**given, **found}

        def part(number: Any, cell: CellProgram = cell, have: Any = have, op: Op = op) -> Any:
            return run_cell(cell, have, number, count, mesh)[op.inputs[0]]

        found[op.outputs[0]] = joined(op, lax.map(part, jnp.arange(count, dtype=jnp.int32)))
    return found


def run_cell(
    cell: CellProgram, have: Mapping[Value, Any], number: Any, count: int, mesh: Mapping[str, int]
) -> dict[Value, Any]:
    """Runs the program of a cell on a micro-batch.

    Args:
      cell: the program.
      have: an array for each value that it reads; inputs that are split have the rows of all
        micro-batches.
      number: of the micro-batch.
      count: how many micro-batches there are.
      mesh: sizes of axes; within `shard_map` if there are any.

    Returns:
      An array for each value that it makes or adds.
    """
    places = {axis: lax.axis_index(axis) for axis in mesh}
    here = Coordinates(
        {**mesh, MICROBATCH: count}, {**places, MICROBATCH: jnp.asarray(number, jnp.int32)}
    )
    operands = [_rows_of(v, have[v], number) for v in cell.given] + [have[v] for v in cell.read]
    results = evaluate(cell.program, operands, here)
    return dict(zip((*cell.made, *cell.added), results, strict=True))


def _rows_of(value: Value, array: Any, number: Any) -> Any:
    """The rows of a micro-batch in an input that is split; any other one as it is."""
    if not in_microbatches(value):
        return array
    dim = next(d for d, axes in enumerate(value.layout or ()) if MICROBATCH in axes)
    size = value.shape[dim]
    return lax.dynamic_slice_in_dim(array, number * size, size, dim)


def joined(op: Op, parts: Any) -> Any:
    """The result of an `accumulate` or `collect` of the values of all micro-batches.

    Args:
      op: the op.
      parts: [microbatches, ...].
    """
    if op.name == "collect":
        dim = op.params["dim"]
        shape = parts.shape[1:]
        rows = jnp.moveaxis(parts, 0, dim)
        return rows.reshape(*shape[:dim], parts.shape[0] * shape[dim], *shape[dim + 1 :])
    return _REDUCE[op.params["monoid"]](parts, axis=0).astype(parts.dtype)


_REDUCE: Mapping[str, Callable[..., Any]] = {
    "sum": jnp.sum, "max": jnp.max, "min": jnp.min, "and": jnp.all, "or": jnp.any
}  # fmt: skip
