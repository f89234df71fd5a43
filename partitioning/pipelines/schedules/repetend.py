"""Repetends: cells that each device repeats, of later and later micro-batches."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator, Mapping
from typing import Any

from ..table import PipelineCell
from .solver import SchedulingProblem, Solver


@dataclasses.dataclass(frozen=True)
class Repetend:
    """A schedule without begin and end: all cells of one round of micro-batches, repeated.

    Attributes:
      period: time between two rounds.
      size: how many micro-batches a round has.
      times: the start of every cell of the first round.
    """

    period: int
    size: int
    times: Mapping[PipelineCell, int]

    @functools.cached_property
    def turns(self) -> dict[PipelineCell, int]:
        """Of each cell, the number of periods that it runs after the first of its round."""
        return {cell: start // self.period for cell, start in self.times.items()}

    @property
    def last(self) -> int:
        """The greatest turn: so many rounds are under way when the first one ends."""
        return max(self.turns.values())

    def place(self, cell: PipelineCell) -> int:
        """The start within a period of a cell of the first round, and of each like it."""
        return self.times[cell] - self.period * self.turns[cell]

    def start(self, cell: PipelineCell) -> int:
        """The start of a cell of any micro-batch, if the first round starts at 0."""
        turn, microbatch = divmod(cell.microbatch, self.size)
        return self.times[cell._replace(microbatch=microbatch)] + turn * self.period

    def repeat(self, number: int) -> Iterator[tuple[PipelineCell, int]]:
        """The cells of one repeat, and their starts if the first repeat begins at 0.

        A repeat runs each cell of another round, so that all of them fit into one period.
        """
        for cell in self.times:
            turn = number + self.last - self.turns[cell]
            late = cell._replace(microbatch=turn * self.size + cell.microbatch)
            yield late, self.place(cell) + number * self.period

    def warm_up(self) -> list[PipelineCell]:
        """The cells that come before the first repeat."""
        return [
            cell._replace(microbatch=turn * self.size + cell.microbatch)
            for cell in self.times
            for turn in range(self.last - self.turns[cell])
        ]


def solve_repetend(
    problem: SchedulingProblem,
    period: int,
    size: int,
    solver: Solver,
    *,
    part: float = 1.0,
    late: bool = False,
) -> Repetend | None:
    """A repetend of a given period; of all of them that with the shortest way through.

    No two cells overlap on a device modulo the period, and the activations of the micro-batches
    under way keep within the limits.

    Args:
      size: how many micro-batches a round has.
      part: of the solver's effort.
      late: True to keep activations, of equally short ways through, as long as memory allows, and
        to leave gradients of weights out of the way. They are left to fill the cool-down with.

    Returns:
      The repetend; None if none is found.
    """
    model = solver.model()
    cells = problem.cells(size)
    most = 1 + size + problem.longest_path // period
    turns = {cell: model.new_int_var(0, most, f"turn of {cell}") for cell in cells}
    places = {cell: model.new_int_var(0, period - 1, f"place of {cell}") for cell in cells}
    starts = {cell: places[cell] + period * turns[cell] for cell in cells}
    through = model.new_int_var(0, period * (most + 2), "through")
    for cell in cells:
        if not (late and cell.work == "weights"):
            model.add(through >= starts[cell] + problem.time(cell))
        for value, link in problem.reads(cell):
            model.add(starts[cell] >= starts[value] + problem.time(value) + link)
        following = cell._replace(microbatch=cell.microbatch + 1)
        if following in starts:
            model.add(starts[following] >= starts[cell] + problem.time(cell))
    for device in range(problem.devices):
        own = problem.on(device, cells)
        model.add_no_overlap(
            model.new_fixed_size_interval_var(places[cell] + shift, problem.time(cell), "")
            for cell in own
            for shift in (0, period)
        )
        if problem.limits is not None:
            _limit(model, problem, device, period, places, turns)
    # Of equally short ones that which keeps activations for the fewest turns, or the most.
    held = sum(turns[problem.last(cell)] - turns[cell] for cell in cells if problem.keeps(cell))
    model.minimize(through * (1 + most * len(cells)) + (-held if late else held))
    found = solver.solve(model, part)
    if found is None:
        return None
    values = {cell: found[0].value(start) for cell, start in starts.items()}
    first = min(values.values())
    return Repetend(period, size, {cell: value - first for cell, value in values.items()})


def _limit(
    model: Any,
    problem: SchedulingProblem,
    device: int,
    period: int,
    places: Mapping[PipelineCell, Any],
    turns: Mapping[PipelineCell, Any],
) -> None:
    """Bounds the memory of a device at the start of each of its cells."""
    assert problem.limits is not None
    own = problem.on(device, places)
    kept = [cell for cell in own if problem.keeps(cell)]
    released = {}
    for forward in kept:
        last = problem.last(forward)
        place, turn = model.new_int_var(0, period - 1, ""), model.new_int_var(0, 1, "")
        model.add(places[last] + problem.time(last) == place + period * turn)
        released[forward] = place, turns[last] + turn
    for cell in own:
        if cell not in kept and not problem.working[cell.segment]:
            continue
        used: Any = problem.working[cell.segment]
        for forward in kept:
            # As many as have started up to now, less those that are released.
            place, turn = released[forward]
            started = turns[forward]
            if forward != cell:
                started = started + _greater(model, places[forward], places[cell])
            ended = turn + _greater(model, place, places[cell])
            used += problem.kept[forward.segment] * (ended - started)
        model.add(used <= problem.limits[device])


def _greater(model: Any, one: Any, other: Any) -> Any:
    """1 if one number is greater than another."""
    found = model.new_bool_var("")
    model.add(one > other).only_enforce_if(found)
    model.add(one <= other).only_enforce_if(~found)
    return found
