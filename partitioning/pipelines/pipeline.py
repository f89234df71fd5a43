"""`Pipeline`: the tactic that cuts a step into stages and runs them by a table."""

from __future__ import annotations

import dataclasses

from ..decide.actions import Action, Context
from .checks import check_table
from .schedules.named import (
    SCHEDULES,
    named_schedule,
    passes_of,
    several_forwards,
    stage_chains,
)
from .table import PipelineTable

#: Behind the named schedules that which is chosen by predicted time; see `choosing`.
SEARCH = "search"
NAMES = (*SCHEDULES, SEARCH)
#: Micro-batches for each stage that a search tries, where their number is not given.
_FOR_EACH_STAGE = (1, 2, 4, 8)


@dataclasses.dataclass(frozen=True)
class Pipeline:
    """Cuts the step into stages over an axis, and runs micro-batches through them by a table.

    Each device of the axis holds the parameters and the optimizer state of its own stages alone.
    The step stays as it is written: the batch is split, gradients and losses are summed over the
    micro-batches, and the optimizer runs once behind the last one. What mixes the rows of a batch
    on the way is refused. It comes last in a schedule; tactics on other axes come before it.

    Attributes:
      axis: the mesh axis of the stages.
      microbatches: into how many parts each device's part of the batch is split; by default four
        for each stage, or the largest number below that divides the rows. A search tries several.
      schedule: one of `NAMES`, or a table. "search" takes what is predicted to be quickest of what
        fits a device's memory: of the named ones, and of tables that a solver finds.
      inputs: names of the arguments that are split; by default every argument that is not state.
      dim: the batch dimension of those.
      cuts: paths, or globs, of parameters, one for each segment but the first, which begins with
        the first product that computes with them; by default segments take equal time.
      name: the name in the plan.
    """

    axis: str
    microbatches: int | None = None
    schedule: str | PipelineTable = "1f1b"
    inputs: tuple[str, ...] = ()
    dim: int = 0
    cuts: tuple[str, ...] = ()
    name: str = "pipeline"

    def __post_init__(self) -> None:
        count, table = self.microbatches, self.schedule
        if count is not None and (
            isinstance(count, bool) or not isinstance(count, int) or count < 1
        ):
            raise ValueError(
                f"Pipeline(microbatches={count!r}): it is how many parts the batch is split into, "
                "at least 1"
            )
        if isinstance(table, PipelineTable):
            if count not in (None, table.microbatches):
                raise ValueError(
                    f"Pipeline(microbatches={count}) with a table of {table.microbatches}; give "
                    "both the same number"
                )
        elif table not in NAMES:
            raise ValueError(
                f"Pipeline(schedule={table!r}): there are {', '.join(NAMES)}, or give "
                "a pipelines.PipelineTable"
            )

    @classmethod
    def parse(cls, text: str) -> Pipeline:
        """Cuts the step into stages over an axis: "stage", or with a schedule and a number of
        micro-batches "stage+zero-bubble+16".

        Raises:
          ValueError: there is no such schedule or number.
        """
        axis, *others = (part.strip() for part in text.split("+"))
        counts = [int(part) for part in others if part.isdecimal()]
        names = [part for part in others if not part.isdecimal()]
        if len(counts) > 1 or len(names) > 1:
            raise ValueError(
                f"pipeline:{text}: write an axis, and behind it at most a schedule and a number of "
                "micro-batches, e.g. pipeline:stage+zero-bubble+16"
            )
        return cls(axis, counts[0] if counts else None, names[0] if names else "1f1b")

    def actions(self, context: Context) -> list[Action]:
        """Tiles nothing: a pass behind all tactics cuts the step."""
        del context
        return []

    def count(self, devices: int, rows: int) -> int:
        """The number of micro-batches, for an axis of so many devices, each with so many rows."""
        if isinstance(self.schedule, PipelineTable):
            return self.schedule.microbatches
        if self.microbatches is not None:
            return self.microbatches
        return _largest_divisor(rows, 4 * devices)

    def counts(self, devices: int, rows: int) -> list[int]:
        """The numbers of micro-batches that a search tries, for the same."""
        if self.microbatches is not None:
            return [self.microbatches]
        return sorted({_largest_divisor(rows, each * devices) for each in _FOR_EACH_STAGE})

    def table(self, devices: int, microbatches: int, forwards: int = 1) -> PipelineTable:
        """The table for an axis of so many devices.

        Args:
          forwards: how many forward passes the step has, of which one is differentiated; for 3F1B.

        Raises:
          ValueError: it is of another number, cannot run, there is none of so many, or its segments
            are not those of the cuts.
        """
        table = self.schedule
        if table == "3f1b":
            if forwards < 2:
                raise ValueError(
                    "Pipeline(schedule='3f1b'): the step has one forward pass; there are several "
                    "where a target, a reference or an older network is computed beside the one "
                    f"that is differentiated, each at least {devices} products deep. Choose '1f1b'"
                )
            table = several_forwards(devices, microbatches, forwards)
        elif not isinstance(table, PipelineTable):
            table, _ = named_schedule(table, devices, microbatches)
        passes = passes_of(table)
        stages = table.segments // passes
        check_table(table, stage_chains(stages, passes), devices=devices)
        if self.cuts and len(self.cuts) != stages - 1:
            raise ValueError(
                f"Pipeline(cuts=...) has {len(self.cuts)} paths, and the table {stages} "
                "segments; name one path for each segment but the first"
            )
        return table


def _largest_divisor(number: int, most: int) -> int:
    return next(n for n in range(min(most, number), 0, -1) if number % n == 0)
