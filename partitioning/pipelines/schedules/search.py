"""Search for schedules: a repetend, and the cells before and after it (Tessel).

In the middle of a long schedule each device repeats the same cells, of later and later
micro-batches: the repetend. That of the shortest period is searched for first, then the cells that
fill the pipeline before it and drain it after it. None of the three depends on how many
micro-batches there are (https://arxiv.org/abs/2311.15269).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from ..accounting import Link, SegmentCost
from ..checks import check_table
from ..edges import Edges, Work
from ..orders import lay_out
from ..table import PipelineCell, PipelineTable
from .repetend import Repetend, solve_repetend
from .solver import SchedulingProblem, Solver, solve_cells

#: So many cells are searched as a whole too, where a repetend may leave something to gain.
_FEW = 400


@dataclasses.dataclass(frozen=True)
class FoundSchedule:
    """A schedule that was searched for.

    Attributes:
      table: the schedule.
      period: time in which the repetend runs one micro-batch; None if the schedule has none, as
        where there are too few micro-batches.
      under_way: how many micro-batches the repetend touches.
      proven: True if no schedule of these micro-batches is shorter. Times that are no multiples of
        the shortest one are rounded to a 16th of it before.
    """

    table: PipelineTable
    period: float | None
    under_way: int
    proven: bool


def search_schedule(
    placement: Sequence[Sequence[int]],
    edges: Edges,
    microbatches: int,
    costs: Sequence[SegmentCost],
    *,
    limits: Sequence[float] | None = None,
    split: bool = False,
    link: Link | None = None,
    effort: float = 30.0,
    workers: int = 1,
) -> FoundSchedule:
    """Searches for the quickest schedule of a placement within a bound of memory.

    Args:
      placement: the devices of each segment.
      costs: for each segment.
      limits: for each device, the most memory of activations in the units of `costs`.
      split: True if gradients of inputs and of weights are cells of their own.
      link: the time of a value between devices.
      effort: most time of the solver in all, in its own measure: roughly seconds of one core. With
        one worker, the schedule is the same each time.
      workers: threads of the solver.

    Raises:
      ImportError: OR-tools is not installed.
      ValueError: no schedule was found within the limits, by this effort.
    """
    problem, unit = _whole_numbers(placement, edges, costs, limits, split, link)
    solver = Solver(effort, workers)
    found = _by_repetends(problem, microbatches, solver)
    if not (found and found.proven) and (not found or len(found.starts) <= _FEW):
        found = _as_a_whole(problem, microbatches, solver, found)
    if found is None:
        within = f" within {[*limits]} of memory" if limits is not None else ""
        raise ValueError(
            f"no schedule of {microbatches} micro-batches was found{within} by an effort of "
            f"{effort:g}; allow more memory, or more effort"
        )
    orders: list[list[PipelineCell]] = [[] for _ in range(problem.devices)]
    for cell in sorted(found.starts, key=lambda cell: (found.starts[cell], str(cell))):
        for device in problem.placement[cell.segment]:
            orders[device].append(cell)
    table = lay_out(orders, problem.placement, microbatches, edges)
    check_table(table, edges, costs=costs, limits=limits)
    repetend = found.repetend
    if repetend is None:
        return FoundSchedule(table, None, 0, found.proven)
    period = repetend.period / repetend.size * unit
    return FoundSchedule(table, period, (1 + repetend.last) * repetend.size, found.proven)


class _Found(NamedTuple):
    """The starts of all cells, the last end, the repetend if there is one, and True if no schedule
    is shorter.
    """

    starts: Mapping[PipelineCell, int]
    total: int
    repetend: Repetend | None
    proven: bool


def _by_repetends(problem: SchedulingProblem, microbatches: int, solver: Solver) -> _Found | None:
    """The best schedule around a repetend; None if there is none, as of too few micro-batches."""
    least = problem.least_total(microbatches)
    best = None
    # Rounds of two micro-batches gain where memory rules out the shortest period.
    for size, late in ((1, False), (1, True), (2, False)):
        found = _shortest_period(problem, size, late, solver)
        if found is not None and microbatches // size > found.last:
            starts = _completed(problem, found, microbatches, solver)
            total = max(start + problem.time(cell) for cell, start in starts.items())
            if best is None or total < best.total:
                best = _Found(starts, total, found, total == least)
            if best.proven:
                break
    return best


def _as_a_whole(
    problem: SchedulingProblem, microbatches: int, solver: Solver, best: _Found | None
) -> _Found | None:
    """The best schedule of all cells at once; the given one if no better one is found."""
    hint = best.starts if best else {}
    found = solve_cells(problem, problem.cells(microbatches), solver, hint=hint)
    if found is None:
        return best
    starts, total, proven = found
    if best is not None and best.total <= total:
        return best._replace(proven=proven and best.total == total)
    return _Found(starts, total, None, proven)


def _whole_numbers(
    placement: Sequence[Sequence[int]],
    edges: Edges,
    costs: Sequence[SegmentCost],
    limits: Sequence[float] | None,
    split: bool,
    link: Link | None,
) -> tuple[SchedulingProblem, float]:
    """The problem in whole numbers, and the time of one unit."""
    backward: tuple[Work, ...] = ("inputs", "weights") if split else ("backward",)
    times = {
        (segment, work): costs[segment].time(work)
        for segment, of in edges.order
        for work in (("forward",) if of == "forward" else backward)
    }
    links = [0.0] * len(placement)
    for segment, work in edges.order if link else ():
        value = PipelineCell(segment, 0, work)
        for reader, _ in edges.readers[segment, work]:
            ends = placement[segment], placement[reader]
            wire = (ends[0][0], ends[1][0]) if max(map(len, ends)) == 1 else (-1, -1)
            if ends[0] != ends[1]:
                assert link is not None
                links[segment] = max(links[segment], link(value, *wire))
    unit = _unit([*times.values(), *links], min(filter(None, times.values()), default=1.0) / 16)
    memory = [*(limits or ()), *(one for cost in costs for one in (cost.kept, cost.working))]
    amount = _unit(memory, max(memory) / 1000)
    problem = SchedulingProblem(
        tuple(map(tuple, placement)),
        edges,
        {work: max(round(one / unit), 1) for work, one in times.items()},
        tuple(round(one / unit) for one in links),
        tuple(_ceil(cost.kept / amount) for cost in costs),
        tuple(_ceil(cost.working / amount) for cost in costs),
        None if limits is None else tuple(int(limit / amount + 1e-9) for limit in limits),
        split,
    )
    return problem, unit


def _unit(values: Sequence[float], otherwise: float) -> float:
    """The smallest of some values if all are multiples of it."""
    least = min((value for value in values if value > 0), default=1.0)
    exact = all(abs(value / least - round(value / least)) < 1e-9 for value in values)
    return least if exact else otherwise


def _ceil(number: float) -> int:
    # What is kept is rounded up, so that a table keeps within the limits as they are.
    return -int(-(number - 1e-9) // 1)


def _shortest_period(
    problem: SchedulingProblem, size: int, late: bool, solver: Solver
) -> Repetend | None:
    """The repetend of the shortest period found."""
    least, most = size * problem.least_period, size * problem.longest_path
    fine = max(least // 64, 1)
    best, period = None, least
    # The period of the busiest device is mostly reached; else it is bisected.
    while least <= most:
        found = solve_repetend(problem, period, size, solver, part=0.2, late=late)
        if found is not None:
            best, most = found, period - fine
        else:
            least = period + fine
        period = (least + most) // 2 if best is not None else min(2 * period, most)
    return best


def _completed(
    problem: SchedulingProblem, repetend: Repetend, microbatches: int, solver: Solver
) -> dict[PipelineCell, int]:
    """The starts of all cells: those of the repeats, of a warm-up before them and of a cool-down
    after them, each as short as it can be.
    """
    starts, shift = _warmed_up(problem, repetend, solver)
    for number in range(microbatches // repetend.size - repetend.last):
        starts |= {cell: shift + start for cell, start in repetend.repeat(number)}
    after = [cell for cell in problem.cells(microbatches) if cell not in starts]
    return starts | _drained(problem, repetend, starts, shift, after, solver)


def _warmed_up(
    problem: SchedulingProblem, repetend: Repetend, solver: Solver
) -> tuple[dict[PipelineCell, int], int]:
    """The starts of the cells before the first repeat, and its own start."""
    cells = repetend.warm_up()
    if not cells:
        return {}, 0
    # The first repeat begins where each of its devices, and each value that it reads, lets it.
    free = [
        min(repetend.place(cell) for cell in problem.on(device, repetend.times))
        for device in range(problem.devices)
    ]
    tails = {cell: -min(free[d] for d in problem.placement[cell.segment]) for cell in cells}
    for number in range(repetend.last):
        for reader, start in repetend.repeat(number):
            for value, link in problem.reads(reader):
                if value in tails:
                    tails[value] = max(tails[value], link - start)
    hint = {cell: repetend.start(cell) for cell in cells}
    found = solve_cells(problem, cells, solver, part=0.3, tails=tails, hint=hint)
    if found is None:
        return hint, repetend.last * repetend.period
    return found[0], found[1]


def _drained(
    problem: SchedulingProblem,
    repetend: Repetend,
    starts: Mapping[PipelineCell, int],
    shift: int,
    cells: Sequence[PipelineCell],
    solver: Solver,
) -> dict[PipelineCell, int]:
    """The starts of the cells after the last repeat."""
    if not cells:
        return {}
    ends = {cell: start + problem.time(cell) for cell, start in starts.items()}
    free = [max(ends[c] for c in problem.on(d, starts)) for d in range(problem.devices)]
    ready = {}
    for cell in cells:
        values = [ends[value] + link for value, link in problem.reads(cell) if value in ends]
        ready[cell] = max([*values, *(free[d] for d in problem.placement[cell.segment])])
    # Counted from the first of them on, numbers do not grow with the micro-batches.
    origin = min(ready.values())
    ready = {cell: start - origin for cell, start in ready.items()}
    # As they would run if repeats went on.
    moved = shift - repetend.last * repetend.period - origin
    hint = {cell: repetend.start(cell) + moved for cell in cells}
    found = solve_cells(problem, cells, solver, part=0.3, ready=ready, hint=hint)
    return {cell: origin + start for cell, start in (found[0] if found else hint).items()}
