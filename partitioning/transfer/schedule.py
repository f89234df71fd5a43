"""Chooses who sends each block to whom, and in which round."""

from __future__ import annotations

import collections
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from .layout import ArrayLayout, Block, overlap, volume
from .links import Links


class Copy(NamedTuple):
    """A block of an array that a device sends to another one, or cuts out for itself."""

    array: str
    source: int
    target: int
    block: Block
    nbytes: int
    is_relayed: bool
    """True if the source has only received it, in an earlier round."""


class _Shared(NamedTuple):
    """A block within one shard at the source and one at the target.

    Attributes:
      block: its place in the array.
      holders: devices of the shard at the source.
      targets: devices of the shard at the target.
      partial: true if it is a part of the shard at the source, and of that at the target.
    """

    block: Block
    holders: Sequence[int]
    targets: Sequence[int]
    partial: tuple[bool, bool]


class _Load:
    """The bytes of each round that a wire carries, or that lie beside a device's shards.

    Attributes:
      rounds: bytes by round.
      full: rounds before this one have no room.
    """

    def __init__(self) -> None:
        self.rounds: dict[int, int] = collections.defaultdict(int)
        self.full = 0

    def add(self, number: int, nbytes: int, room: int) -> None:
        """Adds bytes to a round, which has room for so many."""
        self.rounds[number] += nbytes
        while self.rounds[self.full] >= room > 0:
            self.full += 1


class Schedule:
    """Copies in rounds.

    The source of a copy is a nearest device that has the block: the target itself, else one of its
    host, else one farther off. Who has received a block sends it on within its host, so that a
    block enters a host once. Of devices equally near each owes its part of the bytes, and the one
    sends that owes most. In a round no wire carries, and no device cuts out or puts together, more
    than a shard.
    """

    def __init__(self, links: Links, shard: int, far: bool):
        """Begins with nothing.

        Args:
          links: between the devices.
          shard: bytes of the largest shard.
          far: True if who has received a block sends it on to other hosts too.
        """
        self.rounds: list[list[Copy]] = []
        self.shares: dict[int, float] = collections.defaultdict(float)
        """Of each device the bytes that it would send if those equally near sent equally much."""
        self._links, self._shard, self._far = links, shard, far
        self._shared: dict[Any, list[_Shared]] = {}
        self._sent: dict[int, int] = collections.defaultdict(int)
        self._entered: dict[int, int] = collections.defaultdict(int)
        self._load: dict[object, _Load] = collections.defaultdict(_Load)

    def add(self, name: str, source: ArrayLayout, target: ArrayLayout) -> None:
        """Adds the copies of an array."""
        key = tuple(source.blocks.items()), tuple(target.blocks.items())
        if key not in self._shared:  # Many arrays have the layouts of others.
            self._shared[key] = [
                _Shared(shared, holders, targets, (shared != held, shared != block))
                for block, targets in target.holders.items()
                for held, holders in source.holders.items()
                if (shared := overlap(block, held)) is not None
            ]
        for one in self._shared[key]:
            self._spread(name, one, source.itemsize)

    def _spread(self, name: str, shared: _Shared, itemsize: int) -> None:
        """Adds the copies of one block of an array to all that need it.

        Args:
          name: of the array.
          shared: the block.
          itemsize: bytes of an element.
        """
        block, holders, targets, partial = shared
        nbytes, is_cut, is_part = volume(block) * itemsize, *partial
        ready = dict.fromkeys(holders, 0)
        for target in targets:
            if target in ready and (is_cut or is_part):
                self._place(Copy(name, target, target, block, nbytes, False), partial, 0)
        rest = [target for target in targets if target not in ready]
        inside: dict[int, list[int]] = {}
        for holder in holders:
            inside.setdefault(self._links.unit(holder, 1), []).append(holder)
        # Of the devices of a host that take a block in, the one does that has taken in least.
        for target in sorted(rest, key=lambda one: (self._entered[one], one)):
            host, least = self._links.unit(target, 1), 1
            near = list(inside.get(host, ()))
            if not near:
                known = list(ready) if self._far else holders
                distances = {holder: self._links.distance(holder, target) for holder in known}
                least = min(distances.values())
                near = [holder for holder, distance in distances.items() if distance == least]
            for holder in near:
                self.shares[holder] += nbytes / len(near)
            sender = min(near, key=lambda one: (self._sent[one] - self.shares[one], ready[one]))
            self._sent[sender] += nbytes
            self._entered[target] += nbytes if least > 1 else 0
            relayed = sender not in holders
            copy = Copy(name, sender, target, block, nbytes, relayed)
            # What is received whole is sent on as it is; a part is cut out once more.
            cuts = (is_part if relayed else is_cut, is_part)
            arrived = self._place(copy, cuts, ready[sender])
            ready[target] = arrived + 1
            inside.setdefault(host, []).append(target)

    def _place(self, copy: Copy, partial: tuple[bool, bool], earliest: int) -> int:
        """Puts a copy into the first round that has room for it; returns the round's number."""
        occupied: list[object] = [*self._links.wires(copy.source, copy.target)]
        # Cuts and parts lie beside the shards until they are sent, or put into their place.
        is_cut, is_part = partial
        beside = {copy.target} if is_part else set()
        beside |= {copy.source} if is_cut and copy.source != copy.target else set()
        occupied += [("beside", device) for device in sorted(beside)]
        loads = [self._load[one] for one in occupied]
        number = max(earliest, *(load.full for load in loads)) if loads else earliest
        while any(load.rounds[number] + copy.nbytes > self._shard for load in loads):
            number += 1
        for load in loads:
            load.add(number, copy.nbytes, self._shard)
        while len(self.rounds) <= number:
            self.rounds.append([])
        self.rounds[number].append(copy)
        return number


def largest_shard(*layouts: Mapping[str, ArrayLayout]) -> int:
    """Bytes of the largest shard of some layouts of arrays."""
    return max(
        (
            volume(block) * layout.itemsize
            for of_arrays in layouts
            for layout in of_arrays.values()
            for block in layout.holders
        ),
        default=0,
    )
