"""`plan`: the copies that bring arrays from one layout to another, and what they cost."""

from __future__ import annotations

import collections
import dataclasses
import functools
import json
from collections.abc import Mapping
from typing import Any

from ..simulator.presets import default_topology
from ..simulator.simulate import amount
from ..simulator.topology import Topology
from .layout import ArrayLayout
from .links import Links, Wire
from .schedule import Copy, Schedule, largest_shard


@dataclasses.dataclass(frozen=True)
class TransferPlan:
    """Copies in rounds, from the layouts at the source to those at the target.

    Devices are numbered level by level of the topology, the innermost level first.

    Attributes:
      source: the layout of each array, by its path.
      target: the layouts that the same arrays get.
      topology: the links.
      rounds: copies in the order in which they are made; those of a round need none of its others.
      shares: of each device the bytes that it sends where devices equally near a target send
        equally much.
    """

    source: Mapping[str, ArrayLayout]
    target: Mapping[str, ArrayLayout]
    topology: Topology
    rounds: tuple[tuple[Copy, ...], ...]
    shares: Mapping[int, float]

    @property
    def copies(self) -> list[Copy]:
        """All copies, in order."""
        return [copy for each in self.rounds for copy in each]

    @property
    def devices(self) -> list[int]:
        """The numbers of all devices of both layouts."""
        found = {
            device
            for layouts in (self.source, self.target)
            for layout in layouts.values()
            for device in layout.blocks
        }
        return sorted(found)

    @functools.cached_property
    def links(self) -> Links:
        """The links between the devices."""
        return Links(self.topology)

    @functools.cached_property
    def shard_bytes(self) -> int:
        """Bytes of the largest shard."""
        return largest_shard(self.source, self.target)

    @functools.cached_property
    def sent(self) -> dict[int, int]:
        """Of each device the bytes that it sends to others."""
        found = dict.fromkeys(self.devices, 0)
        for copy in self.copies:
            found[copy.source] += copy.nbytes if copy.source != copy.target else 0
        return found

    @functools.cached_property
    def received(self) -> dict[int, int]:
        """Of each device the bytes that it receives from others."""
        found = dict.fromkeys(self.devices, 0)
        for copy in self.copies:
            found[copy.target] += copy.nbytes if copy.source != copy.target else 0
        return found

    @property
    def bytes_sent(self) -> int:
        """Bytes over all links."""
        return sum(self.sent.values())

    @functools.cached_property
    def bytes_by_level(self) -> dict[str, int]:
        """Bytes over the links of each level, by its name."""
        found = {level.name: 0 for level in self.topology.levels}
        for copy in self.copies:
            if distance := self.links.distance(copy.source, copy.target):
                found[self.links.level(distance).name] += copy.nbytes
        return found

    @functools.cached_property
    def bytes_by_wire(self) -> dict[Wire, int]:
        """Bytes that each wire carries out of its devices, or in."""
        found: dict[Wire, int] = collections.defaultdict(int)
        for copy in self.copies:
            for wire in self.links.wires(copy.source, copy.target):
                found[wire] += copy.nbytes
        return dict(found)

    @functools.cached_property
    def seconds(self) -> float:
        """Predicted seconds until the last copy has arrived.

        A copy begins when its block is there and both wires have carried those before it. What a
        device cuts out and puts together takes no time here.
        """
        free: dict[Wire, float] = collections.defaultdict(float)
        arrived: dict[tuple[str, Any, int], float] = {}
        end = 0.0
        for copy in self.copies:
            distance = self.links.distance(copy.source, copy.target)
            if not distance:
                continue
            wires = self.links.wires(copy.source, copy.target)
            ready = arrived.get((copy.array, copy.block, copy.source), 0.0)
            begin = max(ready, *(free[wire] for wire in wires))
            busy, there = self.links.seconds(distance, copy.nbytes)
            for wire in wires:
                free[wire] = begin + busy
            arrived[copy.array, copy.block, copy.target] = begin + there
            end = max(end, begin + there)
        return end

    @functools.cached_property
    def peak_bytes(self) -> dict[int, int]:
        """Of each device the most bytes that it holds: both layouts, and blocks on their way.

        Where both layouts give a device the same block it is held once.
        """
        found = {}
        beside = self._beside()
        for device in self.devices:
            held = beside.get(device, 0)
            for name, target in self.target.items():
                source = self.source[name]
                held += source.held(device)
                if source.blocks.get(device) != target.blocks.get(device):
                    held += target.held(device)
            found[device] = held
        return found

    def _beside(self) -> dict[int, int]:
        """Of each device the most bytes in a round that are a part of neither layout's shards."""
        most: dict[int, int] = collections.defaultdict(int)
        for each in self.rounds:
            held: dict[int, int] = collections.defaultdict(int)
            for copy in each:
                is_cut, is_part = self.partial(copy)
                if is_part:
                    held[copy.target] += copy.nbytes
                if is_cut and copy.source != copy.target:
                    held[copy.source] += copy.nbytes
            for device, nbytes in held.items():
                most[device] = max(most[device], nbytes)
        return most

    def partial(self, copy: Copy) -> tuple[bool, bool]:
        """True if a copy is a part of the shard that it is cut from, and of the one it goes to."""
        target = self.target[copy.array]
        shard = (target if copy.is_relayed else self.source[copy.array]).blocks[copy.source]
        return copy.block != shard, copy.block != target.blocks[copy.target]

    @property
    def summary(self) -> str:
        """The plan in a line: arrays, bytes, rounds and seconds."""
        if not self.bytes_sent:
            moved = "no byte is sent: every device has what it needs"
        else:
            moved = f"{amount(self.bytes_sent, 'B', 1024)} sent in {len(self.rounds)} rounds"
        total = sum(layout.nbytes for layout in self.source.values())
        arrays = f"{len(self.source)} arrays of {amount(total, 'B', 1024)}"
        return f"{arrays}, {moved}, {self.seconds:.3g} s"

    def explain(self) -> str:
        """The plan in words: arrays, links, seconds and memory."""
        lines = [self.summary]
        for level, nbytes in self.bytes_by_level.items():
            if nbytes:
                most = max(
                    load
                    for (way, depth, _), load in self.bytes_by_wire.items()
                    if self.topology.levels[depth].name == level
                )
                lines.append(
                    f"  over {level}: {amount(nbytes, 'B', 1024)}, the busiest wire "
                    f"{amount(most, 'B', 1024)} one way"
                )
        device = max(self.peak_bytes, key=self.peak_bytes.__getitem__, default=None)
        if device is not None:
            lines.append(
                f"  peak of a device (number {device}): "
                f"{amount(self.peak_bytes[device], 'B', 1024)}, both layouts and at most a shard "
                f"of {amount(self.shard_bytes, 'B', 1024)} on its way"
            )
        return "\n".join([*lines, *self._rows()])

    def _rows(self) -> list[str]:
        """A line for each array that travels."""
        sent: dict[str, int] = collections.defaultdict(int)
        for copy in self.copies:
            sent[copy.array] += copy.nbytes if copy.source != copy.target else 0
        return [
            f"  {name} {layout.dtype}{list(layout.shape)}: from {layout} to {self.target[name]}, "
            f"{amount(sent[name], 'B', 1024)} sent"
            for name, layout in self.source.items()
            if sent[name]
        ]

    def __str__(self) -> str:
        return self.explain()

    def to_json(self) -> dict[str, Any]:
        """A JSON value from which `from_json` makes an equal plan, and the figures."""
        return {
            "source": {name: layout.to_json() for name, layout in self.source.items()},
            "target": {name: layout.to_json() for name, layout in self.target.items()},
            "topology": self.topology.to_json(),
            "rounds": [[list(copy) for copy in each] for each in self.rounds],
            "shares": list(self.shares.items()),
            "bytes_sent": self.bytes_sent,
            "bytes_by_level": self.bytes_by_level,
            "seconds": self.seconds,
            "peak_bytes": max(self.peak_bytes.values(), default=0),
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any] | str) -> TransferPlan:
        """The plan that `to_json` wrote, as a JSON value or as text."""
        values: Mapping[str, Any] = json.loads(data) if isinstance(data, str) else data
        source, target = (
            {name: ArrayLayout.from_json(one) for name, one in values[which].items()}
            for which in ("source", "target")
        )
        rounds = tuple(
            tuple(
                Copy(name, sender, receiver, tuple((a, b) for a, b in block), nbytes, relayed)
                for name, sender, receiver, block, nbytes, relayed in each
            )
            for each in values["rounds"]
        )
        shares = {int(device): share for device, share in values["shares"]}
        return cls(source, target, Topology.from_json(values["topology"]), rounds, shares)


def plan(
    source: Mapping[str, ArrayLayout],
    target: Mapping[str, ArrayLayout],
    topology: Topology | None = None,
) -> TransferPlan:
    """Plans the copies that bring arrays from one layout to another; touches no device.

    Args:
      source: the layout of each array, by its path.
      target: the layouts that the same arrays get, on the same devices or on others.
      topology: of all devices of both; None: one host, with assumed links.

    Raises:
      ValueError: if the arrays of both differ, or the topology has too few devices.
    """
    _check(source, target)
    numbers = [
        device for of in (source, target) for layout in of.values() for device in layout.blocks
    ]
    last = max(numbers, default=0)
    topology = topology or default_topology("", last + 1)
    if last >= topology.num_devices:
        raise ValueError(
            f"the layouts are of devices up to number {last}, and the topology has "
            f"{topology.num_devices}; add hosts to it"
        )
    # Few holders have hosts send on what they received; many are quicker by themselves.
    found = [
        _planned(source, target, topology, far)
        for far in ((False, True) if len(topology.levels) > 1 else (False,))
    ]
    return min(found, key=lambda one: one.seconds)


def _planned(
    source: Mapping[str, ArrayLayout],
    target: Mapping[str, ArrayLayout],
    topology: Topology,
    far: bool,
) -> TransferPlan:
    """The plan in which hosts send on what they received, or leave that to the source."""
    schedule = Schedule(Links(topology), largest_shard(source, target), far)
    # The largest first: smaller ones find room beside them.
    for name in sorted(source, key=lambda one: -source[one].nbytes):
        schedule.add(name, source[name], target[name])
    rounds = tuple(map(tuple, schedule.rounds))
    return TransferPlan(dict(source), dict(target), topology, rounds, dict(schedule.shares))


def _check(source: Mapping[str, ArrayLayout], target: Mapping[str, ArrayLayout]) -> None:
    """Raises ValueError where the arrays of both layouts differ, naming the first."""
    for name in [*source, *target]:
        if name not in source or name not in target:
            where = "target" if name in source else "source"
            raise ValueError(f"{name} is missing at the {where}; give both layouts of each array")
        types = [f"{one.dtype}{list(one.shape)}" for one in (source[name], target[name])]
        if types[0] != types[1]:
            raise ValueError(f"{name} is {types[0]} at the source and {types[1]} at the target")
