"""The work of a program: the floating point operations of each op, and the share that is split."""

from __future__ import annotations

import functools
from collections.abc import Iterable

from ..ir.program import Op, Program
from ..simulator.costs import op_flops
from .node import Node
from .sharding import Decision


class OpFlops:
    """The floating point operations of a program on one device, loops as often as they turn.

    Exponentials and their kin count as one. Of a branch every side counts, and of a `while` one
    turn.

    Attributes:
      of: operations of each op that has any.
      total: of all ops.
    """

    def __init__(self, program: Program):
        self.program = program

    @functools.cached_property
    def of(self) -> dict[Op, float]:
        found: dict[Op, float] = {}
        for op, times in self.program.walk_counted():
            if not op.regions and (flops := sum(op_flops(op)) * times):
                found[op] = flops
        return found

    @functools.cached_property
    def total(self) -> float:
        return sum(self.of.values())

    def node(self, node: Node, factor: int) -> float:
        """The operations of a node that are split if it takes a factor."""
        if node.op is None or not splits(node, factor):
            return 0.0
        return self.inside(node.op) if node.op.regions else self.of.get(node.op, 0.0)

    def inside(self, op: Op) -> float:
        """The operations of the regions of an op."""
        return sum(self.of.get(o, 0.0) for region in op.regions for o in region.walk())

    def split(self, decisions: Iterable[Decision], axis: str) -> float:
        """The share of the program's operations that these decisions split over an axis."""
        found = sum(
            self.node(d.node, d.what)
            for d in decisions
            if d.value is None and d.node is not None and d.axis == axis
        )
        return found / self.total if self.total else 1.0


def splits(node: Node, factor: int) -> bool:
    """True if a tiled factor divides the op's work, and not only the memory of its arrays.

    A scatter into tiled rows goes through every update on every device.
    """
    rule = node.rule
    if factor not in rule.special or factor in rule.monoids:
        return True
    return all(factor not in dims for dims in rule.operands)
