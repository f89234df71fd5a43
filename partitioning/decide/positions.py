"""Decisions as plain data: every value, node and op by its position in the program."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from ..ir.program import Program, Value
from .graph import Graph
from .propagate import Conflict
from .repropagate import Repropagation
from .sharding import Decision

#: The position of no value or node.
_NONE = -1


class Positions:
    """Numbers of a graph's values, nodes and ops, the same for equal programs.

    Args:
      graph: the traced program with its rules.
    """

    def __init__(self, graph: Graph):
        self._nodes = [*graph.nodes, *graph.loops.values()]
        self._ops = list(graph.program.walk())
        self._values = list(_values(graph.program))
        self._number: dict[Any, int] = {}
        for found in (self._nodes, self._ops, self._values):
            self._number.update((one, i) for i, one in enumerate(found))

    def journal(self, decisions: Iterable[Decision]) -> list[list[Any]]:
        """Lines [axis, value, node, dimension or factor] for decisions."""
        return [
            [d.axis, self._of(d.value), self._of(d.node), d.what]
            for d in decisions
        ]  # fmt: skip

    def decisions(self, journal: Iterable[Sequence[Any]], tactic: int) -> Iterator[Decision]:
        """The decisions of such lines, taken under the tactic of an index."""
        for axis, value, node, what in journal:
            yield Decision(
                tactic, axis,
                None if value == _NONE else self._values[value],
                None if node == _NONE else self._nodes[node], what,
            )  # fmt: skip

    def conflict(self, conflict: Conflict) -> list[Any]:
        """[node, axis, candidates, factors] of a conflict."""
        factors = list(conflict.factors)
        return [self._of(conflict.node), conflict.axis, list(conflict.candidates), factors]

    def conflict_of(self, saved: Sequence[Any]) -> Conflict:
        """The conflict that `conflict` wrote."""
        number, axis, candidates, factors = saved
        return Conflict.of(self._nodes[number], axis, dict(zip(factors, candidates, strict=True)))

    def repropagation(self, found: Repropagation) -> list[Any]:
        """[op, value, axis, dimension] of a tiling that was taken up again."""
        return [self._of(found.op), self._of(found.value), found.axis, found.dim]

    def repropagation_of(self, saved: Sequence[Any]) -> Repropagation:
        """The tiling that `repropagation` wrote."""
        op, value, axis, dim = saved
        return Repropagation(self._ops[op], self._values[value], axis, dim)

    def _of(self, one: Any) -> int:
        return _NONE if one is None else self._number[one]


def _values(program: Program) -> Iterator[Value]:
    """Inputs and results of a program and its regions, in program order."""
    yield from program.inputs
    for op in program.ops:
        yield from op.outputs
        for region in op.regions:
            yield from _values(region)
