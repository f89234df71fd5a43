"""The program of every cell of a pipeline's table, sliced from that of a micro-batch.

A cell computes what one segment does to one micro-batch: forward, backward, or the parts of the
backward pass that make the gradients of its inputs or of its weights. What it reads of other cells
crosses along the chain: forward through the segments, and back.
"""

from __future__ import annotations

import dataclasses
import functools
import operator
from collections.abc import Iterable, Iterator, Mapping, Sequence

from ...ir.program import Op, Program, Value
from ..edges import Edges, Task
from .dependence import Dependence, Dependences, Extent
from .segments import Segments


@dataclasses.dataclass(frozen=True, eq=False)
class CellProgram:
    """The work of a cell.

    Attributes:
      program: its inputs are `given`, then `read`; its outputs `made`, then `added`.
      given: inputs of the step: state, and the batch's rows of this micro-batch; and what is
        prepared before the first one.
      read: values of other cells of the same micro-batch.
      made: values for other cells of the same micro-batch.
      added: values that enter `accumulate` and `collect`.
    """

    program: Program
    given: tuple[Value, ...]
    read: tuple[Value, ...]
    made: tuple[Value, ...]
    added: tuple[Value, ...]


@dataclasses.dataclass(frozen=True, eq=False)
class StagedPhase:
    """A phase of a step cut into cells, and what follows its last micro-batch.

    Attributes:
      program: of the phase.
      dependence: its dependences.
      segments: the segment of each op.
      cells: the program of each work of each segment. A segment that has nothing to do for a work
        has an empty program.
      prepared: for each of `Dependence.prepared`, the program of what it reads of a micro-batch.
      tail: from the program's inputs, what is prepared, and the results of `Dependence.totals`, to
        its outputs.
      guard: from scalar inputs, whether micro-batches have anything to do; None if always.
    """

    program: Program
    dependence: Dependence
    segments: Segments
    cells: Mapping[Task, CellProgram]
    prepared: tuple[CellProgram, ...]
    tail: Program
    guard: Program | None = None

    @functools.cached_property
    def edges(self) -> Edges:
        """The tasks that each pass of each segment reads values of."""
        passes = [task for task in self.cells if task[1] in ("forward", "backward")]
        maker = {v: task for task in passes for v in self.cells[task].made}
        reads: list[tuple[Task, tuple[Task, ...]]] = []
        for segment, work in passes:
            read = {maker[v] for v in self.cells[segment, work].read}
            if work == "backward":
                read.add((segment, "forward"))
            reads.append(((segment, work), tuple(sorted(read))))
        return Edges(tuple(reads))

    @property
    def count(self) -> int:
        """The number of segments."""
        return self.segments.count

    @property
    def is_empty(self) -> bool:
        """True if nothing is to be computed of micro-batches."""
        return not self.dependence.totals


@dataclasses.dataclass(frozen=True, eq=False)
class StagedLoop:
    """A loop over steps, whose body is cut into cells.

    Attributes:
      op: the loop.
      parts: of its body.
    """

    op: Op
    parts: tuple[StagedPart, ...]

    @property
    def body(self) -> Program:
        """The program of a turn."""
        return self.op.regions[0]


StagedPart = StagedPhase | StagedLoop


@dataclasses.dataclass(frozen=True, eq=False)
class StagedStep:
    """A step cut into cells.

    Attributes:
      program: of the micro-batch.
      dependence: the dependences of all phases.
      segments: the segment of each op.
      parts: phases, and loops over such.
    """

    program: Program
    dependence: Dependences
    segments: Segments
    parts: tuple[StagedPart, ...]

    @functools.cached_property
    def phases(self) -> tuple[StagedPhase, ...]:
        """All phases, with those of loops, in order."""
        return tuple(phase for phase, _ in self.counted())

    def counted(self) -> Iterator[tuple[StagedPhase, int]]:
        """All phases, each with how often it runs in a step."""
        return _counted(self.parts, 1)

    @property
    def count(self) -> int:
        """The number of segments."""
        return self.segments.count


def _counted(parts: Iterable[StagedPart], times: int) -> Iterator[tuple[StagedPhase, int]]:
    for part in parts:
        if isinstance(part, StagedPhase):
            yield part, times
        else:
            yield from _counted(part.parts, times * part.op.trips)


def staged(dependence: Dependence, segments: Segments, guard: Program | None = None) -> StagedPhase:
    """Slices a phase's program into cells."""
    program, count = dependence.program, segments.count
    passes: dict[Task, list[Op]] = {}
    for segment in range(count):
        passes[segment, "forward"], passes[segment, "backward"] = [], []
    for op in dependence.forward:
        passes[segments.of[op], "forward"].append(op)
    for op in dependence.backward:
        passes[segments.of[op], "backward"].append(op)

    maker: dict[Value, Task] = {}
    readers: dict[Value, set[Task]] = {}
    for task, ops in passes.items():
        for op in ops:
            maker.update(dict.fromkeys(op.outputs, task))
            for value in op.inputs:
                readers.setdefault(value, set()).add(task)
    added: dict[Task, dict[Value, None]] = {task: {} for task in passes}
    for op in dependence.totals:
        (value,) = op.inputs
        # What no segment computes, such as a sum over data, the last one adds.
        added[maker.get(value, (count - 1, "forward"))][value] = None

    order = {op: i for i, op in enumerate(program.ops)}
    slices = functools.partial(_cell, dependence, order)
    cells: dict[Task, CellProgram] = {}
    for task, ops in passes.items():
        crossing = [v for op in ops for v in op.outputs if readers.get(v, set()) - {task}]
        sums = tuple(added[task])
        cells[task] = slices(ops, crossing, sums)
        if task[1] == "backward":
            segment, _ = task
            early = _needed(ops, crossing)
            late = [op for op in ops if op not in early]
            read, made = ({v for op in late for v in vs(op)} for vs in (_inputs, _outputs))
            handed = [v for op in ops if op in early for v in op.outputs if v in read]
            both = list(dict.fromkeys([*crossing, *handed]))
            cells[segment, "inputs"] = slices(
                [op for op in ops if op in early], both, tuple(v for v in sums if v not in made)
            )
            cells[segment, "weights"] = slices(late, (), tuple(v for v in sums if v in made))
    prepared = tuple(slices((), (), op.inputs) for op in dependence.prepared)
    known = tuple(op.outputs[0] for op in (*dependence.prepared, *dependence.totals))
    tail = Program((*program.inputs, *known), program.outputs, dependence.tail, program.constants)
    return StagedPhase(program, dependence, segments, cells, prepared, tail, guard)


_inputs, _outputs = operator.attrgetter("inputs"), operator.attrgetter("outputs")


def _needed(ops: Sequence[Op], values: Iterable[Value]) -> set[Op]:
    """The ops among these that values need."""
    needed, found = set(values), set()
    for op in reversed(ops):
        if not needed.isdisjoint(op.outputs):
            found.add(op)
            needed.update(op.inputs)
    return found


def _cell(
    dependence: Dependence,
    order: Mapping[Op, int],
    ops: Sequence[Op],
    made: Sequence[Value],
    added: Sequence[Value],
) -> CellProgram:
    """The program of some ops of one segment, with the ops of no segment that they need."""
    inside = {v for op in ops for v in op.outputs}
    wanted = [v for op in ops for v in op.inputs] + [v for v in added if v not in inside]
    closure = dependence.closure(wanted)
    every = sorted([*ops, *closure], key=order.__getitem__)
    known = {v for op in every for v in op.outputs}
    program = dependence.program
    outside = [v for op in every for v in op.inputs] + [v for v in added if v not in known]
    outside = [v for v in dict.fromkeys(outside) if v.data is None and v not in known]
    constants = set(program.constants)
    early = (*program.inputs, *(op.outputs[0] for op in dependence.prepared))
    given = tuple(v for v in early if v in set(outside))
    read = tuple(v for v in outside if v not in constants and v not in set(given))
    assert all(dependence.extent[v] is Extent.SPLIT for v in read)
    used = {v for op in every for v in op.inputs}
    inner = Program(
        (*given, *read), (*made, *added), every, tuple(c for c in program.constants if c in used)
    )
    return CellProgram(inner, given, read, tuple(made), tuple(added))
