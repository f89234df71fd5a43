"""Finds the places at which sums over devices are carried out."""

from __future__ import annotations

from collections.abc import Mapping

from ...decide.node import Node
from ...ir.program import Value
from .candidate_state import NO_AXES, CandidateState
from .def_use import DefUse

#: For each value and each node that reads it, the axes over which the node takes a slice of it.
Sliced = Mapping[Value, Mapping[Node, frozenset[str]]]


class PendingReductions:
    """The sums of one candidate.

    Args:
      def_use: the places where values are made and read, and where sums may be deferred to.
      state: the decisions, with their costs.
      sliced: for each value and node that reads it, the axes over which it is sliced there.

    Attributes:
      terms: for a summed value and its axes, the terms that are added up before: the value alone,
        or several.
    """

    def __init__(self, def_use: DefUse, state: CandidateState, sliced: Sliced):
        self.def_use = def_use
        self.state = state
        self.sliced = sliced
        self.terms: dict[tuple[Value, tuple[str, ...]], list[Value]] = {}

    def follow(self, value: Value, axes: tuple[str, ...]) -> None:
        """Follows a pending sum to where it is done: alone, or with the terms of a sum."""
        start, term = value, value
        later, sums = self.def_use.deferred, self.def_use.summed_into
        for _ in range(64):
            outside = self._loop_total(term) if self.def_use.after_loop else None
            cut = self._cut(term)
            # What is to be whole before it is sliced cannot be scattered after the loop.
            if outside is not None and cut <= set(axes) - self._replicated(term):
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
                self.terms.setdefault((term, axes), []).append(leaf)
                return
            else:
                break
            if term is start:
                break
        self.terms.setdefault((term, axes), []).append(term)

    def _loop_total(self, value: Value) -> Value | None:
        """The result of the loop that adds up a value; None where no loop does."""
        for _ in range(64):
            if value in self.def_use.after_loop:
                return self.def_use.after_loop[value]
            if value not in self.def_use.summed_into:
                return None
            value = self.def_use.summed_into[value]
        return None

    def scattered(self, value: Value, axes: tuple[str, ...]) -> frozenset[str]:
        """The axes over which a pending value is sliced as soon as it is summed."""
        found = {a for a in axes if a in self._held(value)}
        by = self.sliced.get(value)
        if by:
            readers = self.def_use.uses.get(value, {})
            for axis in axes:
                if all(axis in by.get(node, ()) for node in readers):
                    found.add(axis)
        return frozenset(found) - self._replicated(value)

    def made(self, value: Value) -> frozenset[str]:
        """The axes over which a value is tiled as its op makes it, before it is resharded."""
        maker = self.def_use.maker.get(value)
        return self._held(value) if maker is None else self._made(*maker)

    def _cut(self, value: Value) -> frozenset[str]:
        """The axes over which less of a value is kept, or read, than its op makes."""
        by = self.sliced.get(value)
        return self._kept(value).union(*by.values()) if by else self._kept(value)

    def _kept(self, value: Value) -> frozenset[str]:
        """The axes over which less of a value is kept than its op makes."""
        tiling = self.state.tilings.get(value)
        return tiling.axes - self.made(value) if tiling and tiling.axes else NO_AXES

    def _replicated(self, value: Value) -> frozenset[str]:
        """The axes over which a tactic wants a value whole."""
        tiling = self.state.tilings.get(value)
        return tiling.replicated if tiling else NO_AXES

    def _held(self, value: Value) -> frozenset[str]:
        """The axes over which a value is tiled; inside of a chain, those of the chain's result."""
        tiling = self.state.tilings.get(value)
        return tiling.axes if tiling else self._made(self.def_use.classes.chains.inside[value], -1)

    def _made(self, node: Node, result: int) -> frozenset[str]:
        cost = self.state.costs.get(node)
        return cost.result_axes[result] if cost else NO_AXES
