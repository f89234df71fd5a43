"""The links that a copy between two devices of a topology takes, and for how long."""

from __future__ import annotations

import dataclasses
import functools
import math

from ..simulator.topology import Level, Topology

Wire = tuple[str, int, int]
"""A direction ("out", "in"), the depth of a level, and the number of one of its wires."""


@dataclasses.dataclass(frozen=True)
class Links:
    """Distances and times between the devices of a topology, which are numbered level by level.

    Attributes:
      topology: its axes are not looked at.
    """

    topology: Topology

    @functools.cached_property
    def _below(self) -> list[int]:
        """Of each level the devices of one unit of the level below."""
        sizes = [level.size for level in self.topology.levels]
        return [math.prod(sizes[:depth]) for depth in range(len(sizes) + 1)]

    def distance(self, one: int, other: int) -> int:
        """0 for a device and itself, else the number of levels up to the one that joins both."""
        if one == other:
            return 0
        found = 1
        while found < len(self.topology.levels) and self.unit(one, found) != self.unit(
            other, found
        ):
            found += 1
        return found

    def unit(self, device: int, depth: int) -> int:
        """The number of the unit of a device that levels below `depth` make: 1 is its host."""
        return device // self._below[depth]

    def level(self, distance: int) -> Level:
        """The level that joins devices at a distance of at least 1."""
        return self.topology.levels[distance - 1]

    def wires(self, source: int, target: int) -> tuple[Wire, ...]:
        """The wires that a copy occupies: one of its source and one of its target."""
        depth = self.distance(source, target) - 1
        if depth < 0:
            return ()
        sharing = self.topology.levels[depth].sharing
        return ("out", depth, source // sharing), ("in", depth, target // sharing)

    def seconds(self, distance: int, nbytes: float) -> tuple[float, float]:
        """Seconds for which a copy occupies its wires, and until it has arrived."""
        level = self.level(distance)
        busy = nbytes / level.bandwidth
        return busy, busy + level.latency
