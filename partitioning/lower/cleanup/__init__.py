"""Clean-ups of the local program: a table of rewrites, applied in order until nothing changes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from ...ir.program import Program
from .loops import gather_before_loop, reduce_after_checkpoint, reduce_after_loop, turn_alone
from .reductions import reduce_late, scatter_reductions, sum_before_reducing
from .reshards import (
    gather_early,
    gather_of_slice,
    gather_together,
    reduce_once,
    share_equal,
    slice_of_gather,
)


class CleanUp(NamedTuple):
    """One row of the table: a description, and the rewrite of one region, which returns True if it
    changed anything.
    """

    does: str
    rewrite: Callable[[Program, Mapping[str, int]], bool]


_RESLICE = CleanUp("all_slice(all_gather(x)) is x, or an all_to_all", slice_of_gather)
_WHOLE = CleanUp("all_gather(all_slice(x)) is x", gather_of_slice)
_STACK = CleanUp("a concatenation of alike gathers is one gather", gather_together)
_EARLY = CleanUp("all_gather(view(x)) is view(all_gather(x))", gather_early)
_SHARE = CleanUp("equal gathers, slices and views of one array are one", share_equal)
_ONCE = CleanUp("equal sums over devices, and what leads to them, are one", reduce_once)
_LATE = CleanUp("linear(reduce(x)) is reduce(linear(x))", reduce_late)
_SCATTER = CleanUp("all_slice(all_reduce(x)) is reduce_scatter(x)", scatter_reductions)
_SUM = CleanUp("reduce(a) + reduce(b) is reduce(a + b)", sum_before_reducing)
_LEAVE = CleanUp("a reduction at a checkpoint's end happens after it", reduce_after_checkpoint)
_AFTER = CleanUp("a sum in a loop's carry is reduced once, after the loop", reduce_after_loop)
_BEFORE = CleanUp(
    "a gather of what no turn of a loop changes happens once, before it", gather_before_loop
)
_ALONE = CleanUp("a loop of examples turns on each device alone where they do not meet", turn_alone)
_DEAD = CleanUp("ops that nobody reads go", lambda program, mesh: program.drop_dead())

#: In order; a reduction that moved or merged may meet a slice or a sum that it did not meet before.
CLEANUPS: tuple[CleanUp, ...] = (
    _RESLICE, _ONCE, _LATE, _SCATTER, _LEAVE, _LATE, _SUM, _LATE, _SCATTER, _AFTER, _EARLY,
    _WHOLE, _SHARE, _STACK, _BEFORE, _SHARE, _ALONE, _DEAD,
)  # fmt: skip


def clean_up(
    program: Program, mesh: Mapping[str, int], after: Callable[[str, Program], None] | None = None
) -> None:
    """Applies the clean-ups to a local program and its regions, in place.

    Args:
      program: the local program.
      mesh: sizes of axes.
      after: called with what was done and the program, after each pass over it; the verifier, in
        tests.
    """
    regions = _regions(program)
    for row in CLEANUPS:
        changed = False
        for region in regions:
            changed |= row.rewrite(region, mesh)
        if changed:
            regions = _regions(program)  # Ops that hold regions may be others.
            if after is not None:
                after(row.does, program)


def _regions(program: Program) -> list[Program]:
    """The regions within a program, each behind those inside of it, and the program itself."""
    return [*(r for op in program.ops for one in op.regions for r in _regions(one)), program]
