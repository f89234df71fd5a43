"""The decisions: for each value and mesh axis a tiled dimension or replicated; for each node and
axis a factor.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from ..ir.program import Layout, Value
from .node import Node

#: Marks a value that is replicated on an axis, and through which nothing propagates.
REPLICATED_DIM = -1


class Decision(NamedTuple):
    """One line of the journal.

    Attributes:
      tactic: the index of the tactic under which it was taken.
      axis: the mesh axis.
      value: the value decided on, or None.
      node: the node decided on, or (with `value`) the one that caused it; None where a tactic said
        so.
      what: a dimension or REPLICATED_DIM of `value`; a factor of `node` where there is no value.
    """

    tactic: int
    axis: str
    value: Value | None
    node: Node | None
    what: int


#: Makes a decision in half of the time that its class takes; a search makes a million.
_decision = tuple.__new__


class Decisions:
    """Decisions in the order that they were taken. Only trials are ever taken back.

    Attributes:
      mesh: sizes of axes.
      tiles: {axis: dimension or REPLICATED_DIM} of each value that has any, in order.
      factors: {axis: factor} of each node that has any, in order.
      journal: every decision.
      tactic: the index under which new decisions are noted.
    """

    def __init__(self, mesh: Mapping[str, int]):
        self.mesh = dict(mesh)
        self.tiles: dict[Value, dict[str, int]] = {}
        self.factors: dict[Node, dict[str, int]] = {}
        self.journal: list[Decision] = []
        self.tactic = 0

    def layout(self, value: Value) -> Layout:
        """The axes of each dimension, major to minor."""
        tiles = self.tiles.get(value)
        if not tiles:
            return ((),) * len(value.shape)
        return layout_of(tiles, len(value.shape))

    def divides(self, value: Value, dim: int, axis: str) -> bool:
        """True if the dimension can be tiled over `axis` on top of its present tiling."""
        parts = self.mesh[axis]
        tiles = self.tiles.get(value)
        if tiles:
            for other, d in tiles.items():
                if d == dim:
                    parts *= self.mesh[other]
        size = value.shape[dim]
        return size > 0 and size % parts == 0

    def set_value(self, value: Value, axis: str, what: int, cause: Node | None) -> None:
        if (tiles := self.tiles.get(value)) is None:
            tiles = self.tiles[value] = {}
        tiles[axis] = what
        self.journal.append(_decision(Decision, (self.tactic, axis, value, cause, what)))

    def set_node(self, node: Node, axis: str, factor: int) -> None:
        if (factors := self.factors.get(node)) is None:
            factors = self.factors[node] = {}
        factors[axis] = factor
        self.journal.append(_decision(Decision, (self.tactic, axis, None, node, factor)))

    def enter(self, decisions: Iterable[Decision]) -> None:
        """Takes decisions that were taken back, or taken in another order, once more."""
        # Searches spend much of their time here: one attribute less for each line counts.
        tiles, factors, entered = self.tiles, self.factors, [*decisions]
        for _, axis, value, node, what in entered:
            if value is not None:
                tiles.setdefault(value, {})[axis] = what
            elif node is not None:
                factors.setdefault(node, {})[axis] = what
        self.journal.extend(entered)

    def rewind(self, length: int) -> None:
        """Takes back every decision after the first `length`, as after a trial."""
        tiles, factors = self.tiles, self.factors
        for _, axis, value, node, _ in reversed(self.journal[length:]):
            if value is not None:
                del tiles[value][axis]
            elif node is not None:
                del factors[node][axis]
        del self.journal[length:]

    def replay(self, length: int | None = None, mesh: Mapping[str, int] | None = None) -> Decisions:
        """A new state with only the first `length` decisions, or all; on another mesh, if given."""
        state = Decisions(self.mesh if mesh is None else mesh)
        state.enter(self.journal[:length])
        state.tactic = self.tactic
        return state


def shared(one: Sequence[Decision], other: Sequence[Decision], start: int = 0) -> int:
    """The number of decisions from `start` on that two journals share before they differ.

    A decision object has one place in a history: two journals that hold it at the same place agree
    on everything before it, so that a binary search finds the number.
    """
    low, high = 0, min(len(one) - start, len(other))
    while low < high:
        middle = (low + high) // 2
        if one[start + middle] is other[middle]:
            low = middle + 1
        else:
            high = middle
    return low


def layout_of(tiles: Mapping[str, int], rank: int) -> Layout:
    """{axis: dimension} as axes per dimension."""
    dims: list[tuple[str, ...]] = [()] * rank
    for axis, dim in tiles.items():
        if dim >= 0:
            dims[dim] += (axis,)
    return tuple(dims)
