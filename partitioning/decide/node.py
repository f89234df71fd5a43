"""What propagation decides: an op with its rule, or a tie of values that are one array."""

from __future__ import annotations

from ..ir.program import Op, Value
from ..rules.factor import REPLICATED_FACTOR, Dims, Rule


class Node:
    """An op with its rule, or a tie.

    Attributes:
      op: the op; None for a tie that belongs to `owner`.
      owner: the op for messages; None for the tie of a program's output to its input.
      rule: which factors there are.
      values: operands, then results.
      dims: the factor of each dimension of each of `values`.
      tileable: (value, its dims) of the values that may be tiled and that a factor is carried by.
      loops: how many loops it is inside.
    """

    __slots__ = ("dims", "loops", "op", "owner", "rule", "tileable", "values")

    def __init__(
        self, op: Op | None, owner: Op | None, rule: Rule, values: tuple[Value, ...], loops: int
    ):
        self.op = op
        self.owner = owner
        self.rule = rule
        self.values = values
        self.dims: tuple[Dims, ...] = rule.operands + rule.results
        self.tileable = tuple(
            [
                (value, dims)
                for value, dims in zip(values, self.dims, strict=True)
                if value.data is None and any(f != REPLICATED_FACTOR for f in dims)
            ]
        )
        self.loops = loops

    def __repr__(self) -> str:
        name = self.owner.name if self.owner else "state"
        return f"Node({name}{' tie' if self.op is None else ''} {self.rule})"
