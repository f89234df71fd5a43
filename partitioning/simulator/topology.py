"""`Topology`: the levels of links between devices, and the placement of mesh axes on them."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np


@dataclasses.dataclass(frozen=True)
class Measured:
    """The measured time of a collective on a level.

    Attributes:
      kind: "all_reduce", "all_gather", "reduce_scatter", "all_to_all" or "permute".
      group: how many devices took part, while the others did the same in groups of their own.
      nbytes: bytes of the gathered result, or of the operand of the others.
      seconds: how long it took.
    """

    kind: str
    group: int
    nbytes: float
    seconds: float


@dataclasses.dataclass(frozen=True)
class Level:
    """One level of a hierarchy of links, such as the chips of a host or the hosts of a pod.

    Attributes:
      name: what the level joins: "chip", "host", "pod".
      size: how many units of the level below it joins.
      bandwidth: bytes per second that one wire sends while it receives as many.
      latency: seconds from the start of a message to its arrival, besides its bytes.
      sharing: how many devices have one wire together (a host's network card, a CPU's memory).
      source: where the figures come from.
      measured: what calibration found; it counts before latency and bandwidth.
    """

    name: str
    size: int
    bandwidth: float
    latency: float
    sharing: int = 1
    source: str = ""
    measured: tuple[Measured, ...] = ()

    def seconds(self, kind: str, nbytes: float, group: int) -> float | None:
        """Seconds of a collective between points that were measured; None where none were.

        Linear in logarithms of bytes and seconds, then in the logarithm of the group. Less than was
        measured takes as long as the least, more takes longer in proportion.
        """
        known: dict[int, list[tuple[float, float]]] = {}
        for point in self.measured:
            if point.kind == kind:
                known.setdefault(point.group, []).append((point.nbytes, point.seconds))
        if not known or not min(known) <= group <= max(known):
            return None
        groups = sorted(known)
        return float(
            np.interp(
                math.log(group),
                [math.log(g) for g in groups],
                [_between(sorted(known[g]), nbytes) for g in groups],
            )
        )


def _between(points: Sequence[tuple[float, float]], nbytes: float) -> float:
    sizes, seconds = zip(*points, strict=True)
    if nbytes > sizes[-1]:
        return float(seconds[-1] * nbytes / sizes[-1])
    return math.exp(np.interp(math.log(max(nbytes, 1.0)), np.log(sizes), np.log(seconds)))


@dataclasses.dataclass(frozen=True)
class Segment:
    """The part of a mesh axis that lies on one level.

    Attributes:
      level: the level.
      size: how many of its units the axis joins.
      depth: which level of the topology it is, the innermost 0.
      busy: how many devices of the mesh share one wire of the level; all that it has, if not told.
    """

    level: Level
    size: int
    depth: int = 0
    busy: float | None = None

    @property
    def sharing(self) -> float:
        """The number of devices with the same program that share a wire."""
        return self.level.sharing if self.busy is None else self.busy


def spanned(placement: Mapping[str, Sequence[Segment]], axes: Sequence[str]) -> list[Segment]:
    """The segments that groups over mesh axes span, in the order of their ranks: the fastest first.

    Args:
      placement: as `Topology.place` gives it.
      axes: the first varies slowest.
    """
    return [segment for axis in reversed(axes) for segment in placement.get(axis, ())]


@dataclasses.dataclass(frozen=True)
class Topology:
    """Levels from the innermost (fastest) to the outermost, and optionally who lies where.

    Attributes:
      levels: innermost first.
      axes: mesh axis to the name of the level it must lie on, or to how many units of every level,
        innermost first, it joins; the others are placed in mesh order, the last axis of the mesh
        innermost.
    """

    levels: tuple[Level, ...]
    axes: Mapping[str, str | tuple[int, ...]] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.levels:
            raise ValueError("a Topology needs at least one Level")
        names = [level.name for level in self.levels]
        if len(set(names)) != len(names):
            raise ValueError(f"the levels of a Topology need different names; got {names}")
        for axis, where in self.axes.items():
            if isinstance(where, str) and where not in names:
                raise ValueError(f"axis {axis!r} is put on level {where!r}; the levels are {names}")
            if not isinstance(where, str) and len(where) != len(names):
                raise ValueError(
                    f"axis {axis!r} is given {len(where)} sizes; the levels are {names}"
                )

    @property
    def num_devices(self) -> int:
        """The number of devices of the topology."""
        return math.prod(level.size for level in self.levels)

    def place(self, mesh: Mapping[str, int]) -> dict[str, tuple[Segment, ...]]:
        """The segments that each mesh axis spans, innermost first.

        Args:
          mesh: axis name to size, major to minor.

        Raises:
          ValueError: the mesh does not fit; the message names the axis and the units that are left.
        """
        total = math.prod(mesh.values())
        described = ", ".join(f"{level.name}={level.size}" for level in self.levels)
        if total > self.num_devices:
            raise ValueError(
                f"mesh {dict(mesh)} needs {total} devices and the topology ({described}) holds "
                f"{self.num_devices}; add hosts to the topology or shrink the mesh"
            )
        left = {level.name: level.size for level in self.levels}
        placed: dict[str, tuple[Segment, ...]] = {}
        pinned = [axis for axis in mesh if axis in self.axes]
        free = [axis for axis in reversed(list(mesh)) if axis not in self.axes]
        for axis in pinned:
            row = self._row(axis, mesh[axis])
            for level, part in zip(self.levels, row, strict=True):
                if left[level.name] % part:
                    raise ValueError(
                        f"axis {axis!r} of size {mesh[axis]} does not fit level {level.name!r}: "
                        f"{left[level.name]} of {level.size} are left; the topology is "
                        f"({described})"
                    )
                left[level.name] //= part
            placed[axis] = tuple(
                Segment(level, part)
                for level, part in zip(self.levels, row, strict=True)
                if part > 1 or level.name == self.axes[axis]
            )
        for axis in free:
            rest, segments = mesh[axis], []
            for level in self.levels:
                part = math.gcd(rest, left[level.name])
                if part > 1:
                    segments.append(Segment(level, part))
                    left[level.name] //= part
                    rest //= part
            if rest > 1:
                raise ValueError(
                    f"axis {axis!r} of size {mesh[axis]} does not divide what the topology "
                    f"({described}) has left; choose a size that divides, or another topology"
                )
            placed[axis] = tuple(segments)
        used = {level.name: level.size // left[level.name] for level in self.levels}
        depths = {level.name: depth for depth, level in enumerate(self.levels)}
        return {
            axis: tuple(
                dataclasses.replace(s, depth=depths[s.level.name], busy=self._busy(s.level, used))
                for s in placed[axis]
            )
            for axis in mesh
        }

    def _row(self, axis: str, size: int) -> tuple[int, ...]:
        """The number of units of every level that an axis with a given place joins."""
        where = self.axes[axis]
        if isinstance(where, str):
            return tuple(size if level.name == where else 1 for level in self.levels)
        if math.prod(where) != size:
            raise ValueError(
                f"axis {axis!r} of size {size} is put on {where} units of the levels "
                f"{[level.name for level in self.levels]}, which are {math.prod(where)}"
            )
        return where

    def _busy(self, level: Level, used: Mapping[str, int]) -> float:
        """The number of devices of a mesh that share one wire of a level.

        Args:
          level: the level.
          used: level name to the number of its units that the mesh uses.
        """
        inside, there = 1, 1
        for below in self.levels:
            if below is level:
                break
            inside, there = inside * used[below.name], there * below.size
        most = inside * used[level.name]
        return float(min(max(level.sharing * inside / there, 1.0), most))

    def to_json(self) -> dict[str, Any]:
        """A JSON value from which `from_json` makes an equal topology."""
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Topology:
        """The topology that `to_json` wrote."""
        levels = (
            Level(**{**level, "measured": tuple(Measured(**m) for m in level.get("measured", ()))})
            for level in data["levels"]
        )
        axes = data.get("axes", {})
        rows = {a: where if isinstance(where, str) else tuple(where) for a, where in axes.items()}
        return cls(tuple(levels), rows)

    @classmethod
    def uniform(cls, size: int, bandwidth: float, latency: float, **level: object) -> Topology:
        """One level that joins all devices alike."""
        return cls((Level("all", size, bandwidth, latency, **level),))  # type: ignore[arg-type]
