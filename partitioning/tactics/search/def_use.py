"""Definitions and uses of the members of classes, and the ops behind which a reduction may wait.

None of it depends on decisions, so that it is found once.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from ...decide.node import Node
from ...ir.program import Op, Value
from ...rules import traits_of
from .baseline import Places
from .classes import ClassGraph

#: The place of what never happens.
NEVER = np.iinfo(np.int64).max


class DefUse:
    """Definitions and uses in a program's classes.

    Args:
      classes: the program's classes.
      places: the place of every op of the program.
      runs: the first and the last place at which an op is computed, if it runs within others.

    Attributes:
      end: the place after all ops.
      times: how often the op at a place runs.
      member_index: a value's position among the members of its class.
      defined, turns: for a class the place where each member is made, and how often it is.
      uses: for a class and a node that reads it, the places of each member's first and last read.
      maker: (node, index of the result) of the single node that makes a class, unless a chain
        hides the class.
      deferred: from a class that one linear op alone reads to that op's result; a sum may wait
        until then.
      summed_into: from a class that one addition alone reads to that addition's result.
      after_loop: from a value that a loop adds up to the loop's result.
      view_of: (class, index of the member there for each member here) of the array that a class is
        only another view of.
    """

    def __init__(self, classes: ClassGraph, places: Places, runs: Mapping[Op, tuple[int, int]]):
        self.classes = classes
        self.places = places
        self.runs = runs
        self._find_places()
        self._find_chains()

    def _find_places(self) -> None:
        """Finds the places where members of classes are made and read."""
        classes, places = self.classes, self.places
        self.end = len(places.times)
        self.times = np.array([*places.times, 1], float)
        self.member_index = {
            v: i for values in classes.members.values() for i, v in enumerate(values)
        }
        self.defined = {
            v: np.array([places.made.get(m, -1) for m in members])
            for v, members in classes.members.items()
        }
        self.turns = {
            v: np.array([float(places.turns.get(m, 1)) for m in members])
            for v, members in classes.members.items()
        }
        self.uses: dict[Value, dict[Node, list[np.ndarray]]] = {}
        for part, nodes in classes.by_op.node_members.items():
            reader = classes.chains.of.get(part, part)
            for node in nodes:
                owner = node.owner
                for value in dict.fromkeys(node.values):
                    stands = classes.class_of.get(value)
                    if stands is None:
                        continue
                    if owner is None:
                        span = (self.end if value is not node.values[0] else NEVER,) * 2
                    elif node.op is None and value in owner.outputs:
                        continue  # It comes out there, and is read elsewhere.
                    elif node.op is None:
                        inside = value in owner.inputs
                        span = (places.start[owner] if inside else places.of[owner],) * 2
                    elif value in node.op.inputs:
                        span = self.runs.get(node.op, (places.of[node.op],) * 2)
                    else:
                        continue
                    self._note(stands, reader, self.member_index[value], span)

    def _note(self, value: Value, node: Node, member: int, span: tuple[int, int]) -> None:
        known = self.uses.setdefault(value, {})
        if node not in known:
            count = len(self.classes.members[value])
            known[node] = [np.full(count, NEVER), np.full(count, -1)]
        first, last = known[node]
        first[member] = min(first[member], span[0])
        if span[1] != NEVER:
            last[member] = max(last[member], span[1])

    def _find_chains(self) -> None:
        """Finds where a pending sum may wait: behind a linear op, or behind a sum of its like."""
        classes = self.classes
        outputs = {classes.class_of.get(v) for v in self.classes.program.outputs}
        self.deferred: dict[Value, Value] = {}
        self.summed_into: dict[Value, Value] = {}
        self.maker: dict[Value, tuple[Node, int]] = {}
        self.after_loop: dict[Value, Value] = {}
        self.view_of: dict[Value, tuple[Value, np.ndarray]] = {}
        for value in classes.members:
            readers = [
                n
                for n in classes.by_op.touching.get(value, ())
                if n.op is None or value in n.values[: len(n.op.inputs)]
            ]
            self._find_view(value)
            if len(readers) != 1 or value in outputs:
                continue
            self._find_loop(value, readers[0])
            (node,) = readers
            if node.op is None or list(node.values).count(value) != 1:
                continue
            at, traits = node.values.index(value), traits_of(node.op.name)
            result = classes.class_of.get(node.op.outputs[0])
            if result is None:
                continue
            others = [v for i, v in enumerate(node.op.inputs) if i != at]
            if traits.signs and all(v.shape == value.shape for v in others):
                self.summed_into[value] = result
            elif at in traits.linear and all(v.data is not None or not v.shape for v in others):
                self.deferred[value] = result

    def _find_loop(self, value: Value, node: Node) -> None:
        """Finds a value that a loop adds up: a pending sum of it is done once, after the loop."""
        if node.op is not None or node.owner is None or len(node.values) != 4:
            return
        _, carry, turned, result = node.values
        added = [n for n in self.classes.by_op.touching.get(carry, ()) if n is not node]
        if turned is value and len(added) == 1 and self.summed_into.get(carry, value) is value:
            (op,) = [n.op for n in added]
            if op is not None and traits_of(op.name).signs and result in self.classes.members:
                self.after_loop[value] = result

    def _find_view(self, value: Value) -> None:
        """Finds the node that makes a value, and the value that it is a mere view of, if any."""
        classes = self.classes
        makers = [n for n in classes.by_op.touching.get(value, ()) if n.op is not None]
        makers = [n for n in makers if n.values[-1] is value and n.op.outputs]  # type: ignore[union-attr]
        if len(makers) != 1:
            return
        (node,) = makers
        assert node.op is not None
        stands = classes.chains.of.get(node)
        if stands is not None and value not in classes.chains.inside:
            count = len(stands.rule.operands)
            self.maker[value] = stands, stands.values.index(value, count) - count
        traits = traits_of(node.op.name)
        if not (traits.rearranges and traits.relayout) or node.values[0] not in classes.members:
            return
        source = node.values[0]
        at = np.zeros(len(classes.members[value]), np.int64)
        for full in classes.by_op.node_members[node]:
            at[self.member_index[full.values[-1]]] = self.member_index[full.values[0]]
        self.view_of[value] = source, at
