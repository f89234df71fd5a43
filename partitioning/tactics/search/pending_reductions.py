"""Sums that devices owe each other, followed to where they are done."""

from __future__ import annotations

from collections.abc import Mapping

from ...decide.graph import Node
from ...ir.program import Value
from .candidate_state import NONE, Seen
from .def_use import Ways

#: For each value and each node that reads it, the axes over which the node takes a slice of it.
Sliced = Mapping[Value, Mapping[Node, frozenset[str]]]


class Sums:
    """The sums of one candidate.

    Args:
      ways: what ways sums may go.
      seen: what is decided.
      sliced: what of values is read in slices.

    Attributes:
      terms: for what is summed, and over which axes, what is added up before: itself alone, or
        several terms.
    """

    def __init__(self, ways: Ways, seen: Seen, sliced: Sliced):
        self.ways = ways
        self.seen = seen
        self.sliced = sliced
        self.terms: dict[tuple[Value, tuple[str, ...]], list[Value]] = {}

    def follow(self, value: Value, owed: tuple[str, ...]) -> None:
        """Follows a sum that is owed to where it is done: alone, or with the terms of a sum."""
        start, term = value, value
        later, sums = self.ways.later, self.ways.sums
        for _ in range(64):
            outside = self._loop_total(term) if self.ways.after_loop else None
            cut = self._cut(term)
            # What is to be whole before it is sliced cannot be scattered after the loop.
            if outside is not None and cut <= set(owed) - self._whole(term):
                term = outside
            elif cut:
                break
            elif term in later:
                term = later[term]
            elif term in sums:
                leaf = term
                while term in sums:
                    term = sums[term]
                    if self._kept(term):
                        break
                self.terms.setdefault((term, owed), []).append(leaf)
                return
            else:
                break
            if term is start:
                break
        self.terms.setdefault((term, owed), []).append(term)

    def _loop_total(self, value: Value) -> Value | None:
        """What a loop adds up of a value, as it comes out of the loop."""
        for _ in range(64):
            if value in self.ways.after_loop:
                return self.ways.after_loop[value]
            if value not in self.ways.sums:
                return None
            value = self.ways.sums[value]
        return None

    def scattered(self, value: Value, owed: tuple[str, ...]) -> frozenset[str]:
        """The axes over which what is owed is sliced as soon as it is summed."""
        found = {a for a in owed if a in self._held(value)}
        by = self.sliced.get(value)
        if by:
            readers = self.ways.read.get(value, {})
            for axis in owed:
                if all(axis in by.get(node, ()) for node in readers):
                    found.add(axis)
        return frozenset(found) - self._whole(value)

    def made(self, value: Value) -> frozenset[str]:
        """The axes over which a value is tiled as its op makes it, before it is resharded."""
        maker = self.ways.made_by.get(value)
        return self._held(value) if maker is None else self._made(*maker)

    def _cut(self, value: Value) -> frozenset[str]:
        """The axes over which less of a value is kept, or read, than its op makes."""
        by = self.sliced.get(value)
        return self._kept(value).union(*by.values()) if by else self._kept(value)

    def _kept(self, value: Value) -> frozenset[str]:
        """The axes over which less of a value is kept than its op makes."""
        tiling = self.seen.tiled.get(value)
        return tiling.over - self.made(value) if tiling and tiling.over else NONE

    def _whole(self, value: Value) -> frozenset[str]:
        """The axes over which a tactic wants a value whole."""
        tiling = self.seen.tiled.get(value)
        return tiling.whole if tiling else NONE

    def _held(self, value: Value) -> frozenset[str]:
        """The axes over which a value is tiled; what is inside of a chain is tiled as it is."""
        tiling = self.seen.tiled.get(value)
        return tiling.over if tiling else self._made(self.ways.folded.chains.inside[value], -1)

    def _made(self, node: Node, result: int) -> frozenset[str]:
        look = self.seen.looks.get(node)
        return look.made[result] if look else NONE
