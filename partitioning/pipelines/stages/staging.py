"""Cuts a traced step into the cells of a pipeline, balanced by the simulator's times."""

from __future__ import annotations

import functools
from collections.abc import Sequence

from ...decide.graph import Graph
from ...decide.sharding import Decisions
from ...ir.program import Op, Program
from ...simulator.attach import Simulator
from .cells import StagedLoop, StagedPart, StagedStep, staged
from .dependence import Dependence, Dependences
from .microbatches import microbatched
from .phases import Part, Phase, StepLoop, is_loop, parts_of, phases
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
    parts = phases(program, microbatches)
    every = [part for part in parts_of(parts) if isinstance(part, Phase)]
    loops = [part for part in parts_of(parts) if isinstance(part, StepLoop)]
    known = {phase: Dependence(phase.program, phase.data) for phase in every}
    dependence = Dependences(
        [*known.values()],
        list(dict.fromkeys(v for phase in every for v in phase.program.inputs)),
        {v for phase in every for v in phase.data},
        [tie for loop in loops for tie in loop.ties()],
    )
    seconds = functools.partial(op_seconds, program, simulator, state)
    segments_ = cut(dependence, segments, seconds if ends is None else ends, cuts)

    def staged_part(part: Part) -> StagedPart:
        if isinstance(part, StepLoop):
            return StagedLoop(part.op, tuple(map(staged_part, part.parts)))
        return staged(known[part], segments_, part.guard)

    return StagedStep(program, dependence, segments_, tuple(map(staged_part, parts)))


def op_seconds(program: Program, simulator: Simulator, state: Decisions) -> dict[Op, float]:
    """The predicted seconds of the kernels at whose root an op is, in all turns of loops over
    steps; others have none.
    """
    found: dict[Op, float] = {}
    for event in simulator.predict(program, state.mesh).timing.events:
        if event.op is not None:
            found[event.op] = found.get(event.op, 0.0) + event.seconds
    for op in filter(is_loop, program.ops):
        for inner, inner_seconds in op_seconds(op.regions[0], simulator, state).items():
            found[inner] = found.get(inner, 0.0) + op.trips * inner_seconds
    return found
