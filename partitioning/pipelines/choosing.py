"""Chooses the table of a step by its predicted cost: of the named ones, and of those that a search
finds for their placements of segments.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from ..simulator.attach import Simulator
from ..simulator.simulate import Simulation
from .accounting import SegmentCost, peak_live
from .costs import PipelineCosts, priced
from .edges import Work
from .execution.spmd import PipelineProgram
from .schedules.named import SCHEDULES, named_schedule, several_forwards, v_shaped
from .schedules.search import search_schedule
from .table import PipelineTable

#: The effort of one search, in the solver's own measure: about seconds of a core.
_EFFORT = 4.0
#: Times of steps that differ by less than this share are alike.
_ALIKE = 1e-3

#: Cuts the step as a table needs it; raises ValueError where it cannot be cut so.
Cut = Callable[[PipelineTable], PipelineProgram]


@dataclasses.dataclass(frozen=True, eq=False)
class TriedTable:
    """A table that a step may be run by.

    Attributes:
      schedule: its name.
      program: the step by it.
      costs: predicted.
      cost: of the device that needs most memory.
    """

    schedule: str
    program: PipelineProgram
    costs: PipelineCosts
    cost: Simulation

    @property
    def table(self) -> PipelineTable:
        """The table."""
        return self.program.table

    @property
    def seconds(self) -> float:
        """Predicted seconds of a step."""
        return self.cost.predicted_seconds.total

    def to_json(self) -> dict[str, Any]:
        """The figures by name."""
        return {
            "schedule": self.schedule,
            "microbatches": self.table.microbatches,
            "seconds": self.seconds,
            "peak_memory_bytes": self.cost.peak_memory_bytes,
            "fits": self.cost.fits,
        }


def choose_table(
    cut: Cut,
    stages: int,
    microbatches: Sequence[int],
    forwards: int,
    simulator: Simulator,
    donated: Sequence[str],
) -> list[TriedTable]:
    """Tries tables for a step, and returns them, the best first.

    The named schedules are tried with every number of micro-batches. For the best number a search
    looks for a quicker table on each of their placements; and, where none fits a device's memory,
    for tables that keep the activations of fewer and fewer micro-batches. All are judged by the
    same simulation.

    Args:
      cut: cuts the step.
      stages: devices of the axis.
      microbatches: numbers of micro-batches, each of which divides the rows of a device.
      forwards: forward passes of the step, the differentiated one included.
      simulator: predicts for a device and a topology.
      donated: names of the donated arguments.

    Raises:
      ImportError: OR-tools is not installed.
      ValueError: the step cannot be cut into so many stages.
    """
    tried: list[TriedTable] = []
    refused: list[ValueError] = []

    def add(name: str, table: PipelineTable) -> None:
        if any(table == one.table for one in tried):
            return
        try:
            program = cut(table)
        except ValueError as error:
            refused.append(error)
            return
        costs = priced(program, simulator, donated)
        tried.append(TriedTable(name, program, costs, costs.simulation()))

    for count in microbatches:
        for name, table in _named(stages, count, forwards):
            add(name, table)
    if not tried:
        raise refused[0]
    best = min(tried, key=_rank).table.microbatches
    names = [one for one in tried if one.table.microbatches == best]
    for name, table in _searched(names, None):
        add(name, table)
    most = min(max(peak_live(one.table, one.program.step.edges)) for one in names)
    for limit in range(int(most) - 1, 0, -1):
        if any(one.cost.fits for one in tried):
            break
        for name, table in _searched(names, limit):
            add(f"{name}, {limit} micro-batches under way", table)
    return sorted(tried, key=_rank)


def told(tried: Sequence[TriedTable]) -> str:
    """One line: what was chosen, and what the best of other names would take."""
    first = tried[0]
    line = f"{first.schedule} is the best of {len(tried)} tables"
    other = next((one for one in tried if one.schedule != first.schedule), None)
    if other is not None:
        ratio, count = other.seconds / first.seconds, other.table.microbatches
        large = "" if other.cost.fits else ", and does not fit"
        line += (
            f"; {other.schedule} with {count} micro-batches takes {ratio:.2f} times as long{large}"
        )
    return line


def _rank(tried: TriedTable) -> tuple[bool, float, int, int]:
    """Puts plans that fit before others; of those the quickest, of such alike the smallest."""
    nbytes, fits = tried.cost.peak_memory_bytes, tried.cost.fits
    about = round(math.log(tried.seconds) / _ALIKE)
    return not fits, about if fits else nbytes, nbytes, len(tried.schedule)


def _named(stages: int, microbatches: int, forwards: int) -> Iterator[tuple[str, PipelineTable]]:
    """The named tables that there are of so many."""
    for name in SCHEDULES:
        if name == "3f1b":
            if forwards > 1:
                yield name, several_forwards(stages, microbatches, forwards)
            continue
        try:
            yield name, named_schedule(name, stages, microbatches)[0]
        except ValueError:
            continue  # Not of so many micro-batches.


def _searched(
    names: Sequence[TriedTable], limit: int | None
) -> Iterator[tuple[str, PipelineTable]]:
    """Tables that are found for the placements of others, by the costs that those have."""
    known = set()
    for one in names:
        table, edges = one.table, one.program.step.edges
        costs = one.costs.of_segments()
        for split in (False, True):
            if (table.placement, split) in known or not _priced(costs, split):
                continue
            known.add((table.placement, split))
            limits = None if limit is None else [float(limit)] * table.devices
            try:
                found = search_schedule(
                    table.placement, edges, table.microbatches, costs,
                    limits=limits, split=split, effort=_EFFORT,
                )  # fmt: skip
            except ValueError:
                continue  # None within the limit, by this effort.
            shape = " in a V" if table.placement == tuple(v_shaped(table.devices)) else ""
            apart = ", gradients of weights apart" if split else ""
            yield f"a search over {table.segments} segments{shape}{apart}", found.table


def _priced(costs: Sequence[SegmentCost], split: bool) -> bool:
    """True if what a table with or without gradients apart consists of has a cost."""
    works: tuple[Work, ...] = ("inputs", "weights") if split else ("backward",)
    return any(cost.time(work) > 0 for cost in costs for work in works)
