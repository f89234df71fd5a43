"""Finds the slices, all-to-alls and gathers that take an array from one layout to another."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from typing import Any

from ..ir.program import Layout, Value


def retiled(value: Value, layout: Layout, mesh: Mapping[str, int]) -> Value:
    """A new local value: the same array in another layout."""
    assert value.layout is not None
    shape = list(value.shape)
    for dim, (old, new) in enumerate(zip(value.layout, layout, strict=True)):
        if old != new:
            shape[dim] = shape[dim] * _parts(old, mesh) // _parts(new, mesh)
    return value.like(tuple(shape), layout)


def _parts(axes: tuple[str, ...], mesh: Mapping[str, int]) -> int:
    return math.prod([mesh[a] for a in axes])


@functools.lru_cache(maxsize=100_000)
def steps(source: Layout, target: Layout) -> tuple[tuple[str, dict[str, Any], Layout], ...]:
    """The local ops that take a value from `source` to `target`.

    Slices come first, for they shrink what moves; then all-to-alls; gathers last.

    Returns:
      (op name, params, layout after it) for each.
    """
    dims = [list(axes) for axes in source]
    goal = [list(axes) for axes in target]
    found: list[tuple[str, dict[str, Any], Layout]] = []

    def now() -> Layout:
        return tuple(map(tuple, dims))

    while dims != goal:
        if slices := _slices(dims, goal):
            for dim, axes in enumerate(slices):
                dims[dim] += axes
            found.append(("all_slice", {"slices": tuple(map(tuple, slices))}, now()))
            continue
        moved = False
        for dim, axes in enumerate(dims):
            if not axes or goal[dim][: len(axes)] == axes:
                continue
            for other in range(len(dims)):
                ready = (
                    len(goal[other]) > len(dims[other])
                    and goal[other][: len(dims[other])] == dims[other]
                )
                if other != dim and ready and goal[other][len(dims[other])] == axes[-1]:
                    axis = axes.pop()
                    dims[other].append(axis)
                    params = {"split_dim": other, "concat_dim": dim, "axes": (axis,)}
                    found.append(("all_to_all", params, now()))
                    moved = True
                    break
            if moved:
                break
        if moved:
            continue
        for dim, axes in enumerate(dims):
            if goal[dim][: len(axes)] != axes:
                keep = 0
                while keep < min(len(axes), len(goal[dim])) and axes[keep] == goal[dim][keep]:
                    keep += 1
                gone = tuple(axes[keep:])
                # An axis that another dimension waits for leaves by all-to-all once it is the minor
                # one.
                waits = [a for a in gone if any(a in goal[d] for d in range(len(dims)) if d != dim)]
                if waits and gone[-1] not in waits:
                    gone = gone[max(i for i, a in enumerate(gone) if a in waits) + 1 :]
                del axes[len(axes) - len(gone) :]
                found.append(("all_gather", {"dim": dim, "axes": gone}, now()))
                break
    return tuple(found)


def _slices(dims: list[list[str]], goal: list[list[str]]) -> list[list[str]]:
    """For each dimension the axes it can be sliced over at once, or [] where there is nothing to
    slice.
    """
    used = {axis for axes in dims for axis in axes}
    slices: list[list[str]] = []
    for axes, wanted in zip(dims, goal, strict=True):
        new: list[str] = []
        if wanted[: len(axes)] == axes:
            for axis in wanted[len(axes) :]:
                if axis in used:
                    break
                new.append(axis)
        slices.append(new)
    return slices if any(slices) else []
