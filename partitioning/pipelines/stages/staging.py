"""Cuts a traced step into the cells of a pipeline, balanced by the simulator's times."""

from __future__ import annotations

import functools
from collections.abc import Sequence

from ...decide.graph import Graph
from ...decide.sharding import Decisions
from ...ir.program import Op, Program
from ...simulator.attach import Simulator
from .cells import StagedStep, staged
from .conditions import conditions_apart
from .dependence import Dependence
from .microbatches import microbatched
from .segments import cut


def staged_step(
    graph: Graph,
    state: Decisions,
    segments: int,
    microbatches: int,
    simulator: Simulator,
    inputs: Sequence[str] = (),
    dim: int = 0,
    ends: Sequence[int] | None = None,
    cuts: Sequence[str] = (),
) -> StagedStep:
    """Cuts a step into segments and micro-batches.

    Args:
      graph: the traced step.
      state: the decisions over the axes of the mesh; none is of the stages.
      segments: into how many parts the forward pass is cut, and the backward pass with it.
      microbatches: into how many parts each device's part of the batch is split.
      simulator: predicts the time of every op.
      inputs: names of the arguments that are split; by default every argument that is not state.
      dim: the batch dimension of those.
      ends: `segments.ends` of the same step before, instead of a prediction.
      cuts: as of `Pipeline`.

    Raises:
      ValueError: the batch cannot be split so, an op mixes its rows, there are fewer products than
        segments, or no product is where a cut should be.
    """
    program = microbatched(graph, state, microbatches, inputs, dim)
    conditions_apart(program)
    dependence = Dependence(program)
    seconds = functools.partial(op_seconds, program, simulator, state)
    return staged(dependence, cut(dependence, segments, seconds if ends is None else ends, cuts))


def op_seconds(program: Program, simulator: Simulator, state: Decisions) -> dict[Op, float]:
    """The predicted seconds of the kernels at whose root an op is; others have none."""
    found: dict[Op, float] = {}
    for event in simulator.predict(program, state.mesh).timing.events:
        if event.op is not None:
            found[event.op] = found.get(event.op, 0.0) + event.seconds
    return found
