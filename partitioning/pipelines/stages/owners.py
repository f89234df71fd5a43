"""Tells the segment that owns each array of the state, and each op behind the last micro-batch.

An optimizer updates parameters elementwise: a parameter, its moments, its gradient and what is
computed from them form a group, and belong to the segment that computes with the parameter.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from ...ir.disjoint_sets import DisjointSets
from ...ir.program import Value
from .dependence import Dependences


class Groups:
    """Arrays, not scalars, that the ops behind the last micro-batch compute from one another.

    Args:
      dependence: of a step.
    """

    def __init__(self, dependence: Dependences):
        self._sets: DisjointSets[Value] = DisjointSets()
        self._inputs = dependence.inputs
        together = [(*op.inputs, *op.outputs) for op in dependence.tail]
        for every in (*together, *dependence.ties):
            # What depends on no parameter is computed wherever it is read.
            values = [v for v in every if v in dependence.trained]
            arrays = [v for v in values if v.data is None and v.ndim]
            for value in arrays[1:]:
                self._sets.join(arrays[0], value)

    def root(self, value: Value) -> Value:
        """The value that stands for a value's group."""
        return self._sets.root(value)

    def segments(
        self, readers: Mapping[Value, Iterable[int]]
    ) -> Callable[[Value], tuple[int, ...]]:
        """A function from a value to the segments that compute with the inputs in its group.

        Args:
          readers: for each input the segments that compute with it.
        """
        found: dict[Value, set[int]] = {}
        for value in self._inputs:
            if value.ndim:
                found.setdefault(self.root(value), set()).update(readers.get(value, ()))
        return lambda value: tuple(sorted(found.get(self.root(value), ()))) if value.ndim else ()
