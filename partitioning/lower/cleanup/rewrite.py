"""The tools of every clean-up: makers and readers of values, and replacing values."""

from __future__ import annotations

import collections
import functools

from ...ir.program import Op, Program, Value


class Region:
    """The ops of one region while it is rewritten.

    Attributes:
      program: the region.
      maker: the op that makes a value.
      users: the ops that read a value, once per reading operand; None stands for the region's
        result.
    """

    def __init__(self, program: Program):
        self.program = program

    @functools.cached_property
    def maker(self) -> dict[Value, Op]:
        return {value: op for op in self.program.ops for value in op.outputs}

    @functools.cached_property
    def users(self) -> dict[Value, list[Op | None]]:
        users: dict[Value, list[Op | None]] = collections.defaultdict(list)
        for op in self.program.ops:
            for value in op.inputs:
                users[value].append(op)
        for value in self.program.outputs:
            users[value].append(None)
        return users

    def made_by(self, value: Value, name: str) -> Op | None:
        """The op called `name` that makes the value, or None."""
        op = self.maker.get(value)
        return op if op is not None and op.name == name else None

    def single(self, value: Value) -> bool:
        """True if exactly one operand reads the value."""
        return len(self.users.get(value, ())) == 1

    def apply(
        self,
        replaced: dict[Value, Value],
        before: dict[Op, list[Op]] | None = None,
        dropped: set[Op] | None = None,
    ) -> None:
        """Rewrites the region: new ops stand before the given ones, values are replaced, ops
        dropped.
        """
        ops: list[Op] = []
        for op in self.program.ops:
            if before and op in before:
                ops.extend(before[op])
            if dropped and op in dropped:
                continue
            ops.append(op)
        if replaced:
            for op in ops:
                if not replaced.keys().isdisjoint(op.inputs):
                    op.inputs = tuple(_final(v, replaced) for v in op.inputs)
            self.program.outputs = tuple(_final(v, replaced) for v in self.program.outputs)
        self.program.ops = ops


def _final(value: Value, replaced: dict[Value, Value]) -> Value:
    while value in replaced:
        value = replaced[value]
    return value


def stays_whole(reduction: Op) -> bool:
    """True if a tactic wants the reduced value whole on an axis it is reduced over."""
    return any(axis in reduction.outputs[0].whole for axis in reduction.params["axes"])
