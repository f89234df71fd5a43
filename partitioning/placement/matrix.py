"""Placement matrices: how many units of every level of a hierarchy each mesh axis joins.

A row for each axis, a column for each level; a row's product is the axis, a column's the level. All
ways to lay axes onto the hierarchy that its links can tell apart are these matrices (P2, arXiv
2110.10548), far fewer than orders of devices. The order follows from the matrix.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from ..simulator.topology import Topology


@dataclasses.dataclass(frozen=True)
class PlacementMatrix:
    """One way to lay the axes of a mesh onto the levels of a topology.

    Attributes:
      levels: names of the levels, innermost first.
      rows: for each axis of the mesh, in its order, the units of each level that it joins.
    """

    levels: tuple[str, ...]
    rows: Mapping[str, tuple[int, ...]]

    @classmethod
    def of(cls, mesh: Mapping[str, int], topology: Topology) -> PlacementMatrix:
        """The matrix by which a topology places a mesh if nothing is chosen.

        Raises:
          ValueError: the topology does not hold the mesh.
        """
        rows: dict[str, tuple[int, ...]] = {}
        for axis, segments in topology.place(mesh).items():
            sizes = {segment.level.name: segment.size for segment in segments}
            rows[axis] = tuple(sizes.get(level.name, 1) for level in topology.levels)
        return cls(tuple(level.name for level in topology.levels), rows)

    def to_json(self) -> dict[str, Any]:
        """The levels and rows as plain data."""
        return {"levels": list(self.levels), "rows": {a: list(r) for a, r in self.rows.items()}}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> PlacementMatrix:
        """The matrix that `to_json` wrote."""
        rows = {axis: tuple(row) for axis, row in data["rows"].items()}
        return cls(tuple(data["levels"]), rows)

    def on(self, topology: Topology) -> Topology:
        """The topology with the axes where the matrix puts them."""
        return dataclasses.replace(topology, axes=dict(self.rows))

    def order(self) -> tuple[int, ...]:
        """For every place of the mesh, row-major, the number of the device that stands there.

        Devices are numbered as they are joined: those of the first unit of the outermost level
        first. Within a level the last axis of the mesh is innermost.
        """
        axes = list(self.rows)
        outward = range(len(self.levels))[::-1]
        numbers = np.arange(math.prod(n for row in self.rows.values() for n in row))
        machine = [(level, axis) for level in outward for axis in axes]
        numbers = numbers.reshape([self.rows[axis][level] for level, axis in machine])
        wanted = [machine.index((level, axis)) for axis in axes for level in outward]
        return tuple(numbers.transpose(wanted).ravel().tolist())

    def parts(self) -> dict[str, dict[str, int]]:
        """The axes that lie on several levels, each as parts of one level, the outermost first.

        Returns:
          Axis to name of the part to its size.
        """
        found: dict[str, dict[str, int]] = {}
        for axis, row in self.rows.items():
            levels = [(name, n) for name, n in zip(self.levels, row, strict=True) if n > 1]
            if len(levels) > 1:
                found[axis] = {f"{axis}_{name}": size for name, size in reversed(levels)}
        taken = list(self.rows)
        for axis, parts in found.items():
            for name in parts:
                if name in taken:
                    raise ValueError(
                        f"a part of axis {axis!r} would be called {name!r}, as another axis is; "
                        "rename the axis or the level of the topology"
                    )
                taken.append(name)
        return found

    def split(self) -> PlacementMatrix:
        """The same matrix for a mesh with axes cut into those parts."""
        rows: dict[str, tuple[int, ...]] = {}
        parts = self.parts()
        for axis, row in self.rows.items():
            names = {name.removeprefix(f"{axis}_"): name for name in parts.get(axis, ())}
            if not names:
                rows[axis] = row
            for level in reversed(self.levels):
                if level in names:
                    at = self.levels.index(level)
                    rows[names[level]] = tuple(n if i == at else 1 for i, n in enumerate(row))
        return PlacementMatrix(self.levels, rows)

    def __str__(self) -> str:
        told = []
        for axis, row in self.rows.items():
            on = [f"{name}={n}" for name, n in zip(self.levels, row, strict=True) if n > 1]
            told.append(f"{axis} on {' x '.join(reversed(on)) or 'one device'}")
        return ", ".join(told)


def placements(mesh: Mapping[str, int], topology: Topology) -> tuple[PlacementMatrix, ...]:
    """Every placement of a mesh that fills a topology; that which it has by itself comes first.

    Args:
      mesh: axis name to size, major to minor.
      topology: axes that it puts on a level stay there.

    Raises:
      ValueError: the mesh does not fill the topology, or no matrix fits.
    """
    count = math.prod(mesh.values())
    if count != topology.num_devices:
        described = ", ".join(f"{level.name}={level.size}" for level in topology.levels)
        raise ValueError(
            f"mesh {dict(mesh)} has {count} devices and the topology ({described}) "
            f"{topology.num_devices}; a placement is chosen where they are as many"
        )
    given = PlacementMatrix.of(mesh, topology)
    names = tuple(level.name for level in topology.levels)
    sizes = tuple(level.size for level in topology.levels)
    fixed = {axis: given.rows[axis] for axis in topology.axes if axis in mesh}
    found = [
        PlacementMatrix(names, dict(zip(mesh, rows, strict=True)))
        for rows in _matrices(tuple(mesh.items()), sizes, fixed)
    ]
    return (given, *(matrix for matrix in found if matrix != given))


def _matrices(
    axes: tuple[tuple[str, int], ...],
    left: tuple[int, ...],
    fixed: Mapping[str, tuple[int, ...]],
) -> Iterator[tuple[tuple[int, ...], ...]]:
    """Yields the matrices of axes by levels with columns that multiply to the units left."""
    if not axes:
        if all(n == 1 for n in left):
            yield ()
        return
    (name, size), *rest = axes
    for row in [fixed[name]] if name in fixed else _rows(size, left):
        after = tuple(n // k for n, k in zip(left, row, strict=True))
        for others in _matrices(tuple(rest), after, fixed):
            yield (row, *others)


def _rows(size: int, left: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    """The ways to write a size as a product of divisors of these."""
    divisors = [[k for k in range(1, n + 1) if n % k == 0 and size % k == 0] for n in left]
    for row in itertools.product(*divisors):
        if math.prod(row) == size:
            yield row
