"""Cuts a traced step into the cells of a pipeline, balanced by the simulator's times."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence

from ...decide.graph import Graph
from ...decide.sharding import Decisions
from ...ir.program import Op, Program
from ...simulator.attach import Simulator
from .cells import StagedLoop, StagedPart, StagedStep, staged
from .chains import forward_passes
from .dependence import Dependence, Dependences
from .microbatches import microbatched
from .phases import Part, Phase, StepLoop, is_loop, parts_of, phases
from .segments import cut, is_product
from .spread import SpreadWork


@dataclasses.dataclass(frozen=True, eq=False)
class SplitStep:
    """A step of micro-batches, before it is cut.

    Attributes:
      program: of the micro-batch.
      parts: phases, and loops over such.
      known: the dependences of each phase.
      dependence: those of all phases.
    """

    program: Program
    parts: Sequence[Part]
    known: Mapping[Phase, Dependence]
    dependence: Dependences


def split_step(
    graph: Graph, state: Decisions, microbatches: int, inputs: Sequence[str] = (), dim: int = 0
) -> SplitStep:
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
    return SplitStep(program, parts, known, dependence)


def spread_over(step: SplitStep, state: Decisions, axis: str) -> SpreadWork | None:
    """The work that earlier tactics spread over the axis of the stages; None if there is none."""
    if not any(axis in tiles for tiles in state.tiles.values()):
        return None
    return SpreadWork(step.parts, axis)


def cut_step(
    step: SplitStep,
    segments: int,
    seconds: Callable[[], Mapping[Op, float]] | Sequence[int],
    cuts: Sequence[str] = (),
    forwards: int = 1,
    spread: SpreadWork | None = None,
) -> StagedStep:
    """Cuts a step of micro-batches into segments.

    Args:
      step: the step.
      segments: into how many parts each forward pass is cut, and the backward pass with it; those
        that run on all devices of the axis are further ones.
      seconds: tells how long each op takes, as `op_seconds` predicts it; or `segments.ends` of the
        same step before.
      cuts: as of `Pipeline`.
      forwards: how many forward passes have segments of their own; see `forward_passes`.
      spread: the work of all devices of the axis at once.

    Raises:
      ValueError: there are fewer products than segments, no product is where a cut should be, or
        there are not so many forward passes.
    """
    chains = None
    if forwards > 1:
        chains = forward_passes(step.dependence, is_product, segments)
        if chains.count != forwards:
            raise ValueError(
                f"the table is of {forwards} forward passes, the step has {chains.count} that are "
                f"at least {segments} products deep, the differentiated one included"
            )
    divided = cut(step.dependence, segments, seconds, cuts, chains, spread)

    def staged_part(part: Part) -> StagedPart:
        if isinstance(part, StepLoop):
            return StagedLoop(part.op, tuple(map(staged_part, part.parts)))
        phase = staged(step.known[part], divided, part.guard)
        if spread is not None:
            for (segment, _), cell in phase.cells.items():
                if segment not in divided.whole:
                    spread.check_alone(segment, cell.program.ops)
        return phase

    parts = tuple(map(staged_part, step.parts))
    return StagedStep(step.program, step.dependence, divided, parts)


def op_seconds(program: Program, simulator: Simulator, mesh: Mapping[str, int]) -> dict[Op, float]:
    """The predicted seconds of the kernels at whose root an op is, in all turns of loops over
    steps; others have none.
    """
    found: dict[Op, float] = {}
    for event in simulator.predict_time(program, mesh).events:
        if event.op is not None:
            found[event.op] = found.get(event.op, 0.0) + event.seconds
    for op in filter(is_loop, program.ops):
        for inner, inner_seconds in op_seconds(op.regions[0], simulator, mesh).items():
            found[inner] = found.get(inner, 0.0) + op.trips * inner_seconds
    return found
