"""Cuts a traced step into the cells of a pipeline, balanced by the simulator's times."""

from __future__ import annotations

import functools
from collections.abc import Sequence

from ...decide.graph import Graph
from ...decide.sharding import Decisions
from ...ir.program import Op, Program
from ...simulator.attach import Simulator
from .cells import StagedStep, staged
from .chains import forward_passes
from .conditions import conditions_apart
from .dependence import Dependence
from .microbatches import microbatched
from .segments import cut, is_product
from .spread import Spread


def split_step(
    graph: Graph, state: Decisions, microbatches: int, inputs: Sequence[str] = (), dim: int = 0
) -> Dependence:
    """Splits a step into micro-batches, and tells what depends on what.

    Args:
      graph: the traced step.
      state: the decisions over the axes of the mesh.
      microbatches: into how many parts each device's part of the batch is split.
      inputs: names of the arguments that are split; by default every argument that is not state.
      dim: the batch dimension of those.

    Raises:
      ValueError: the batch cannot be split so, or an op mixes its rows.
    """
    program = microbatched(graph, state, microbatches, inputs, dim)
    conditions_apart(program)
    return Dependence(program)


def staged_step(
    dependence: Dependence,
    state: Decisions,
    segments: int,
    simulator: Simulator,
    ends: Sequence[int] | None = None,
    cuts: Sequence[str] = (),
    forwards: int = 1,
    spread: Spread | None = None,
) -> StagedStep:
    """Cuts a step of micro-batches into segments.

    Args:
      dependence: of the program of a micro-batch.
      state: the decisions over the axes of the mesh.
      segments: into how many parts each forward pass is cut, and the backward pass with it; those
        that run on all devices of the axis are further ones.
      simulator: predicts the time of every op.
      ends: `segments.ends` of the same step before, instead of a prediction.
      cuts: as of `Pipeline`.
      forwards: how many forward passes have segments of their own; see `forward_passes`.
      spread: the work of all devices of the axis at once.

    Raises:
      ValueError: there are fewer products than segments, no product is where a cut should be, or
        there are not so many forward passes.
    """
    chains = None
    if forwards > 1:
        chains = forward_passes(dependence, is_product, segments)
        if chains.count != forwards:
            raise ValueError(
                f"the table is of {forwards} forward passes, the step has {chains.count} that are "
                f"at least {segments} products deep, the differentiated one included"
            )
    seconds = functools.partial(op_seconds, dependence.program, simulator, state)
    known = seconds if ends is None else ends
    step = staged(dependence, cut(dependence, segments, known, cuts, chains, spread))
    if spread is not None:
        for (segment, _), cell in step.cells.items():
            if segment not in step.segments.whole:
                spread.check_alone(segment, cell.program.ops)
    return step


def op_seconds(program: Program, simulator: Simulator, state: Decisions) -> dict[Op, float]:
    """The predicted seconds of the kernels at whose root an op is; others have none."""
    found: dict[Op, float] = {}
    for event in simulator.predict(program, state.mesh).timing.events:
        if event.op is not None:
            found[event.op] = found.get(event.op, 0.0) + event.seconds
    return found
