"""Cells of a pipeline as an integer program for CP-SAT."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

from ..edges import Edges, Work
from ..table import PipelineCell


@dataclasses.dataclass(frozen=True)
class SchedulingProblem:
    """A problem of scheduling, in whole numbers.

    Attributes:
      placement: the devices of each segment.
      edges: of the segments.
      times: (segment, work) to the time of its cell.
      links: for each segment, the time of its result from one device to another.
      kept, working: memory of each segment; see `SegmentCost`.
      limits: for each device, the most memory in use; None if there is no bound.
      split: True if gradients of inputs and of weights are cells of their own.
    """

    placement: tuple[tuple[int, ...], ...]
    edges: Edges
    times: Mapping[tuple[int, Work], int]
    links: tuple[int, ...]
    kept: tuple[int, ...]
    working: tuple[int, ...]
    limits: tuple[int, ...] | None
    split: bool

    @property
    def devices(self) -> int:
        """The number of devices."""
        return 1 + max(map(max, self.placement))

    def cells(self, microbatches: int) -> list[PipelineCell]:
        """The cells of some micro-batches; in each, they come after those that they read."""
        backward: tuple[Work, ...] = ("inputs", "weights") if self.split else ("backward",)
        works = [
            (segment, part)
            for segment, work in self.edges.order
            for part in (backward if work == "backward" else (work,))
        ]
        return [PipelineCell(s, m, work) for m in range(microbatches) for s, work in works]

    def time(self, cell: PipelineCell) -> int:
        """The time of a cell."""
        return self.times[cell.segment, cell.work]

    def reads(self, cell: PipelineCell) -> Iterator[tuple[PipelineCell, int]]:
        """The cells that one reads, and how long their results travel to it."""
        for makers in cell.sources(self.edges):
            value = makers[-1] if self.split else makers[0]
            near = self.placement[value.segment] == self.placement[cell.segment]
            yield value, 0 if near else self.links[value.segment]

    def on(self, device: int, cells: Iterable[PipelineCell]) -> list[PipelineCell]:
        """Those of some cells that a device runs."""
        return [cell for cell in cells if device in self.placement[cell.segment]]

    def last(self, cell: PipelineCell) -> PipelineCell:
        """The cell after which activations of a segment and micro-batch are no longer kept."""
        return cell._replace(work="weights" if self.split else "backward")

    def keeps(self, cell: PipelineCell) -> bool:
        """True if activations are kept from a cell on."""
        return cell.work == "forward" and self.edges.has_backward(cell.segment)

    @property
    def least_period(self) -> int:
        """The time of the cells of one micro-batch on the busiest device."""
        cells = self.cells(1)
        return max(sum(map(self.time, self.on(device, cells))) for device in range(self.devices))

    @property
    def longest_path(self) -> int:
        """The time of one micro-batch alone, from its first cell to its last."""
        return max(start + self.time(cell) for cell, start in self._earliest.items())

    def least_total(self, microbatches: int) -> int:
        """No schedule takes less: a device runs its cells, after those that they wait for and
        before those that wait for them.
        """
        rest: dict[PipelineCell, int] = dict.fromkeys(self.cells(1), 0)
        for cell in reversed(self.cells(1)):
            for value, link in self.reads(cell):
                rest[value] = max(rest[value], link + self.time(cell) + rest[cell])
        totals = [self.longest_path]
        for device in range(self.devices):
            own = self.on(device, rest)
            if own:
                busy = microbatches * sum(map(self.time, own))
                head = min(self._earliest[cell] for cell in own)
                totals.append(head + busy + min(rest[cell] for cell in own))
        return max(totals)

    @functools.cached_property
    def _earliest(self) -> dict[PipelineCell, int]:
        """The starts of the cells of one micro-batch alone."""
        found: dict[PipelineCell, int] = {}
        for cell in self.cells(1):
            values = (found[value] + self.time(value) + link for value, link in self.reads(cell))
            found[cell] = max(values, default=0)
        return found


def cp_model() -> Any:
    """The module of OR-tools.

    Raises:
      ImportError: it is not installed.
    """
    try:
        from ortools.sat.python import cp_model
    except ImportError as error:
        raise ImportError(
            "the search for schedules needs OR-tools: pip install 'troupe[pipelines]'"
        ) from error
    return cp_model


class Solver:
    """CP-SAT with an effort that all its calls share.

    Effort is the solver's own measure of time, about seconds of one core. Bound by it alone, one
    thread finds the same schedules on every machine.

    Args:
      effort: of all calls together.
      workers: threads; several do not find the same schedules each time.
    """

    def __init__(self, effort: float, workers: int = 1):
        self._module = cp_model()
        self._left = effort
        self._workers = workers

    def model(self) -> Any:
        """An empty model."""
        return self._module.CpModel()

    def solve(self, model: Any, part: float = 1.0) -> tuple[Any, bool] | None:
        """A solver with the best solution found, and True if there is no better one.

        Args:
          part: of the effort that is left.

        Returns:
          None if no solution was found.
        """
        solver = self._module.CpSolver()
        # Something is left always, as the least a call needs.
        solver.parameters.max_deterministic_time = max(part * self._left, 0.1)
        solver.parameters.num_workers = self._workers
        solver.parameters.random_seed = 0
        status = solver.solve(model)
        self._left -= solver.response_proto.deterministic_time
        if status not in (self._module.OPTIMAL, self._module.FEASIBLE):
            return None
        return solver, status == self._module.OPTIMAL


def solve_cells(
    problem: SchedulingProblem,
    cells: Collection[PipelineCell],
    solver: Solver,
    *,
    part: float = 1.0,
    ready: Mapping[PipelineCell, int] | None = None,
    tails: Mapping[PipelineCell, int] | None = None,
    hint: Mapping[PipelineCell, int] | None = None,
) -> tuple[dict[PipelineCell, int], int, bool] | None:
    """Starts of cells such that the last of their ends is as early as can be.

    Args:
      cells: of each (segment, work), consecutive micro-batches.
      part: of the solver's effort.
      ready: the earliest start of a cell; 0 by default. What a cell reads besides `cells` is there.
      tails: for each cell, what is added to its end.
      hint: starts to begin with.

    Returns:
      The starts, the last end (with what is added), and True if there is none earlier; None if no
      starts were found.
    """
    model = solver.model()
    ready, tails, hint = ready or {}, tails or {}, hint or {}
    horizon = max(ready.values(), default=0)
    horizon += sum(problem.time(c) + problem.links[c.segment] for c in cells)
    starts = {cell: model.new_int_var(ready.get(cell, 0), horizon, str(cell)) for cell in cells}
    ends = {cell: start + problem.time(cell) for cell, start in starts.items()}
    total = model.new_int_var(min([*tails.values(), 0]), 2 * horizon, "total")
    for cell in cells:
        model.add(total >= ends[cell] + tails.get(cell, 0))
        for value, link in problem.reads(cell):
            if value in starts:
                model.add(starts[cell] >= ends[value] + link)
        following = cell._replace(microbatch=cell.microbatch + 1)
        if following in starts:
            model.add(starts[following] >= ends[cell])
        if cell in hint:
            model.add_hint(starts[cell], hint[cell])
    for device in range(problem.devices):
        own = problem.on(device, cells)
        model.add_no_overlap(
            model.new_fixed_size_interval_var(starts[c], problem.time(c), "") for c in own
        )
        if problem.limits is not None:
            _limit(model, problem, own, starts, horizon, problem.limits[device])
    model.minimize(total)
    found = solver.solve(model, part)
    if found is None:
        return None
    solution, proven = found
    return {c: solution.value(s) for c, s in starts.items()}, solution.value(total), proven


def _limit(
    model: Any,
    problem: SchedulingProblem,
    own: Sequence[PipelineCell],
    starts: Mapping[PipelineCell, Any],
    horizon: int,
    limit: int,
) -> None:
    """Bounds the memory of the cells of a device at all times."""
    intervals, demands = [], []
    for cell in own:
        if problem.working[cell.segment]:
            time = problem.time(cell)
            intervals.append(model.new_fixed_size_interval_var(starts[cell], time, ""))
            demands.append(problem.working[cell.segment])
        last = problem.last(cell)
        if problem.keeps(cell):
            end = starts[last] + problem.time(last) if last in starts else horizon
            start = starts[cell]
        elif cell == last and cell._replace(work="forward") not in starts:
            start, end = 0, starts[cell] + problem.time(cell)
        else:
            continue
        size = model.new_int_var(0, horizon, "")
        intervals.append(model.new_interval_var(start, size, end, ""))
        demands.append(problem.kept[cell.segment])
    model.add_cumulative(intervals, demands, limit)
