"""Follows the elements along a tiled dimension, also through ops at which the tiling ends."""

from __future__ import annotations

from collections.abc import Iterable

from ..ir.program import Op, Program, Value
from ..rules import REPLICATED_FACTOR, rule_of
from .graph import Graph, ties


class RowFlow:
    """The dimensions that hold the rows, in every value that follows from them.

    Attributes:
      dims: the dimensions that hold rows, for each value with any.
      turns: how often a value is made anew: the turns of the loops in which it changes.
      entries: candidates for tiling, in program order, with their ops: results that an op
        spreads rows over (`Rule.spreads`), and values that a scan hands to its body.
    """

    def __init__(self, graph: Graph, seeds: Iterable[tuple[Value, int]]):
        self.dims: dict[Value, set[int]] = {}
        self.turns: dict[Value, int] = {}
        self.entries: dict[Value, Op] = {}
        for value, dim in seeds:
            self.dims.setdefault(value, set()).add(dim)
        self._walk(graph.program, 1)

    def _walk(self, program: Program, runs: int) -> None:
        for op in program.ops:
            if op.regions:
                self._enter(op, runs)
            else:
                self._follow(op)
            turns = max((self.turns.get(v, 1) for v in op.inputs), default=1)
            if op.regions:
                turns = max(turns, runs)
            if turns > 1:
                for value in op.outputs:
                    self.turns[value] = turns

    def _follow(self, op: Op) -> None:
        known = [(i, v) for i, v in enumerate(op.inputs) if v in self.dims]
        if not known or (rule := rule_of(op)) is None:
            return
        for i, value in known:
            for dim in self.dims[value]:
                factor = rule.operands[i][dim]
                if factor != REPLICATED_FACTOR:
                    for result, dims in zip(op.outputs, rule.results, strict=True):
                        if factor in dims:
                            self.dims.setdefault(result, set()).add(dims.index(factor))
                for at, result_dim in rule.spreads.get((i, dim), ()):
                    self.dims.setdefault(op.outputs[at], set()).add(result_dim)
                    self.entries.setdefault(op.outputs[at], op)

    def _enter(self, op: Op, runs: int) -> None:
        inner = runs * op.trips
        first = op.params["num_consts"] if op.name == "scan" else 0
        for region in op.regions:
            for i, value in enumerate(region.inputs):
                outer = op.inputs[i] if op.name in ("scan", "checkpoint") else None
                outside = self.turns.get(outer, 1) if outer is not None else runs
                turns = outside if op.name != "scan" or i < first else inner
                if turns > 1:
                    self.turns[value] = turns
        self._share(op)
        if op.name == "scan":
            for value in op.regions[0].inputs[first + op.params["num_carry"] :]:
                if self.dims.get(value):
                    self.entries.setdefault(value, op)
        for region in op.regions:
            self._walk(region, inner)
        self._share(op)

    def _share(self, op: Op) -> None:
        """Values that a loop or branch ties are spread alike."""
        for group in ties(op):
            common = {
                dim - skip for v, skip in group for dim in self.dims.get(v, ()) if dim >= skip
            }
            if common:
                for value, skip in group:
                    if value.data is None:
                        self.dims.setdefault(value, set()).update(d + skip for d in common)
