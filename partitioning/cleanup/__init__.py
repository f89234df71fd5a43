"""Clean-ups of the local program: a table of rewrites, applied in order until nothing changes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from ..program import Program
from .dead import drop_dead
from .reductions import scatter_reductions, sum_before_reducing
from .reshards import slice_of_gather


class CleanUp(NamedTuple):
    """One row of the table: what it does, and the rewrite of one region, which says whether it changed any."""

    does: str
    rewrite: Callable[[Program, Mapping[str, int]], bool]


CLEANUPS: tuple[CleanUp, ...] = (
    CleanUp("all_slice(all_gather(x)) is x, or an all_to_all", slice_of_gather),
    CleanUp("all_slice(all_reduce(x)) is reduce_scatter(x)", scatter_reductions),
    CleanUp("reduce(a) + reduce(b) is reduce(a + b)", sum_before_reducing),
    CleanUp("ops that nobody reads go", drop_dead),
)


def clean_up(
    program: Program, mesh: Mapping[str, int], after: Callable[[str, Program], None] | None = None
) -> None:
    """Applies the clean-ups to a local program and its regions, in place.

    Args:
      program: the local program.
      mesh: sizes of axes.
      after: called with what was done and the program, after each pass over it; the verifier, in tests.
    """
    for row in _ORDER:
        changed = _each_region(program, mesh, row)
        if changed and after is not None:
            after(row.does, program)


# A sum merged in the middle may be sliced at its end, so reductions are scattered once more.
_ORDER = (*CLEANUPS[:3], CLEANUPS[1], CLEANUPS[3])


def _each_region(program: Program, mesh: Mapping[str, int], row: CleanUp) -> bool:
    changed = False
    for op in program.ops:
        for region in op.regions:
            changed |= _each_region(region, mesh, row)
    return row.rewrite(program, mesh) or changed
