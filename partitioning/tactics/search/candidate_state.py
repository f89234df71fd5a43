"""What an estimate has looked at, and what it goes on from when more is decided."""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

import numpy as np

from ...decide.graph import Node
from ...ir.program import Layout, Value
from .timeline import Exchange

#: No axes.
NONE: frozenset[str] = frozenset()


class Tiling(NamedTuple):
    """How a value lies.

    Attributes:
      layout: the axes of each dimension.
      share: of it that a device holds.
      number: the same for equal layouts, and quicker to compare.
      over: the axes of the layout.
      whole: the axes over which it must stay whole.
    """

    layout: Layout
    share: float
    number: int
    over: frozenset[str]
    whole: frozenset[str]


class Ask(NamedTuple):
    """What a node wants of a value.

    Attributes:
      value: the value.
      target: the layout in which it is wanted.
      more: the axes over which it is sliced for that.
      transfer: what brings it there; nothing is sent where that takes no time.
      result: whether it is what the node makes, brought to where it is kept.
    """

    value: Value
    target: Layout
    more: frozenset[str]
    transfer: Exchange
    result: bool


class Look(NamedTuple):
    """What was seen of a node, for what is decided of it and around it.

    Attributes:
      asks: the values that it wants in another layout.
      owed: the axes over which its results are still to be summed.
      share: of its work that a device does.
      operands: of a product, the share of each operand that it reads.
      made: for each result the axes over which it is tiled as it is made; last, those of the node.
      results: for each result the share of it that is made, and what is left of that in memory.
    """

    asks: list[Ask]
    owed: tuple[str, ...]
    share: float
    operands: tuple[float, ...]
    made: tuple[frozenset[str], ...]
    results: tuple[float, ...]


@dataclasses.dataclass(frozen=True)
class Seen:
    """What was seen of a state; more decisions are looked at on a copy.

    Attributes:
      tiled: how values lie.
      looks: what was last seen of nodes; those around which nothing is decided are missing.
      asks: of nodes, what they want in another layout.
      owed: of nodes, the axes over which their results are to be summed.
      share: what a device has of values, of nodes' work, of products' operands, and of what is
        made.
    """

    tiled: dict[Value, Tiling]
    looks: dict[Node, Look]
    asks: dict[Node, list[Ask]]
    owed: dict[Node, tuple[str, ...]]
    share: np.ndarray

    def copy(self) -> Seen:
        return Seen(
            self.tiled.copy(),
            self.looks.copy(),
            self.asks.copy(),
            self.owed.copy(),
            self.share.copy(),
        )
