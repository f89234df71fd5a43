"""A lower bound of the memory of any plan, found before the search."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence

from ...decide.sharding import Decisions
from ...ir.program import Value


def least_bytes(values: Sequence[Value], state: Decisions, axes: Sequence[str]) -> float:
    """The bytes that a device holds of arrays if each is split as far as it can be.

    Args:
      values: arrays that are held throughout, as arguments are.
      state: the decisions so far, which stay.
      axes: the axes that may split more.
    """
    known: dict[tuple[object, ...], float] = {}
    total = 0.0
    for value in values:
        tiles = state.tiles.get(value, {})
        key = value.shape, *tiles.items()
        if key not in known:
            known[key] = _least_share(value.shape, tiles, axes, state.mesh)
        total += value.nbytes * known[key]
    return total


def _least_share(
    shape: tuple[int, ...], tiles: Mapping[str, int], axes: Sequence[str], mesh: Mapping[str, int]
) -> float:
    """The least share of an array that a device can hold: every way to give axes to dimensions."""
    parts = [1] * len(shape)
    for axis, dim in tiles.items():
        if dim >= 0:
            parts[dim] *= mesh[axis]
    free = [axis for axis in axes if axis not in tiles]
    most = 1
    for given in itertools.product(range(-1, len(shape)), repeat=len(free)):
        split = parts.copy()
        for axis, dim in zip(free, given, strict=True):
            if dim >= 0:
                split[dim] *= mesh[axis]
        if all(size % n == 0 for size, n in zip(shape, split, strict=True)):
            most = max(most, math.prod(split))
    return 1.0 / most
