"""Finds the work that another tactic spreads over the axis of the stages: it is interlaced.

An embedding or a head that is tiled over the axis is computed by all of its devices at once, in
steps of their own between those of the stages.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ...ir.program import COLLECTIVES, Op, Program, Value, is_over
from .dependence import walk
from .phases import Part, StepLoop


class SpreadWork:
    """The work of a step that differs from device to device of an axis.

    Args:
      parts: of the step, or of a loop's body.
      axis: the axis.

    Attributes:
      axis: the axis.
      ops: those that read or make values of which each device has its own, or exchange them.
      exchanges: those among them that exchange values over the axis.
    """

    def __init__(self, parts: Sequence[Part], axis: str):
        self.axis = axis
        self.ops: set[Op] = set()
        self.exchanges: set[Op] = set()
        self._values: set[Value] = set()
        self._find(parts)

    def _find(self, parts: Sequence[Part]) -> None:
        """Finds the work of parts, in order."""
        for part in parts:
            if not isinstance(part, StepLoop):
                self._find_in(part.program)
                continue
            for tie in part.ties():
                if any(map(self._is_own, tie)):
                    self._values.update(v for v in tie if v.data is None)
            self._find(part.parts)
            results = zip(part.op.outputs, part.body.outputs, strict=True)
            self._values.update(outer for outer, inner in results if inner in self._values)

    def _find_in(self, program: Program) -> None:
        values = self._values
        values.update(filter(self._is_tiled, (*program.inputs, *program.constants)))
        for op in program.ops:
            over = [one for one in walk(op) if is_over(one, self.axis)]
            exchanged = any(one.name in COLLECTIVES for one in over)
            if not (over or not values.isdisjoint(op.inputs) or any(map(self._owes, op.outputs))):
                continue
            self.ops.add(op)
            if exchanged:
                self.exchanges.add(op)
            whole = op.name in ("all_reduce", "all_gather") and op in over
            values.update(v for v in op.outputs if not whole or self._is_tiled(v))

    def _is_own(self, value: Value) -> bool:
        return value in self._values or self._is_tiled(value)

    def _is_tiled(self, value: Value) -> bool:
        return any(self.axis in axes for axes in value.layout or ())

    def _owes(self, value: Value) -> bool:
        tiled = self._is_tiled(value)
        return tiled or (value.partial is not None and self.axis in value.partial[0])

    def check_alone(self, segment: int, ops: Iterable[Op]) -> None:
        """Raises ValueError if one device alone were to run an op of several."""
        for op in ops:
            if op in self.ops:
                raise ValueError(
                    f"segment {segment} of the pipeline computes with an array that another "
                    f"tactic tiles over axis {self.axis!r} ({op.name} at "
                    f"{op.source or 'an unknown line'}); what several stages compute with lies "
                    "whole on each of them: tile it over another axis"
                )
