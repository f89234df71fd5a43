"""Finds the parts of a step by its structure: parameters, optimizer state, gradients, and the uses
of weights.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence

from ..ir.disjoint_sets import DisjointSets
from ..ir.program import Op, Program, Value
from ..rules import REPLICATED_FACTOR, traits_of
from .node import Node


def is_matmul(op: Op) -> bool:
    """True if an op multiplies two operands over dimensions that it contracts."""
    return traits_of(op.name).flops == "matmul"


class GraphStructure:
    """The parts of a step, found when they are first asked for.

    Args:
      program: the traced program.
      nodes: its nodes.
      touching: the nodes that read or make a value.
      makers: the op that makes a value.
      updated: state that comes in to state that comes out.
      weights: inputs that are parameters and do not come out.
    """

    def __init__(
        self,
        program: Program,
        nodes: Sequence[Node],
        touching: Mapping[Value, Sequence[Node]],
        makers: Mapping[Value, Op],
        updated: Mapping[Value, Value],
        weights: Sequence[Value] = (),
    ):
        self._program = program
        self._nodes = nodes
        self._touching = touching
        self._makers = makers
        self._updated = updated
        self._weights = [v for v in weights if v not in updated]

    @functools.cached_property
    def data(self) -> tuple[Value, ...]:
        """Inputs that are neither state nor weights, such as the batch."""
        known = {*self._updated, *self._weights}
        return tuple(v for v in self._program.inputs if v not in known)

    @property
    def parameters(self) -> tuple[Value, ...]:
        """State that is used beyond its own elementwise update, and weights: parameters."""
        return self._split_state[0]

    @property
    def optimizer_state(self) -> tuple[Value, ...]:
        """State arrays that only enter their own elementwise update: moments, averages."""
        return self._split_state[1]

    @functools.cached_property
    def _split_state(self) -> tuple[tuple[Value, ...], tuple[Value, ...]]:
        same = self._same_arrays
        users = _users(self._program)
        updated = {v for after in self._updated.values() for v in same.get(after, (after,))}
        used: list[Value] = [v for v in self._weights if v.shape]
        kept: list[Value] = []
        for value in self._updated:
            if value.shape:
                (kept if _only_elementwise(value, same, users, updated) else used).append(value)
        return tuple(used), tuple(kept)

    @functools.cached_property
    def _same_arrays(self) -> dict[Value, tuple[Value, ...]]:
        """For each value that a loop or branch ties to others, all of them: they are one array."""
        same: DisjointSets[Value] = DisjointSets()
        for node in self._nodes:
            if node.op is None and node.owner is not None:
                for value in node.values:
                    same.join(node.values[0], value)
        return {v: tuple(group) for group in same.groups() for v in group}

    @functools.cached_property
    def gradients(self) -> tuple[Value, ...]:
        """The arrays that elementwise updates of the state begin with.

        Walks back from every updated state array through elementwise ops of its shape to the first
        values that no such op made.
        """
        same = self._same_arrays
        found: dict[Value, None] = {}
        ends = set(self._program.inputs) | set(self._updated.values())
        ends = {v for end in ends for v in same.get(end, (end,))}
        for before, after in self._updated.items():
            if not before.shape:
                continue
            stack = list(same.get(after, (after,)))
            seen = set(stack)
            first = len(stack)
            while stack:
                value = stack.pop()
                first -= 1
                op = self._makers.get(value)
                if op is None or op.regions or (value in ends and first < 0):
                    continue
                traits = traits_of(op.name)
                if not (traits.elementwise or traits.broadcasts):
                    found[value] = None
                    continue
                for operand in op.inputs:
                    if operand.shape == value.shape:
                        for reached in same.get(operand, (operand,)):
                            if reached not in seen:
                                seen.add(reached)
                                stack.append(reached)
        return tuple(found)

    @functools.cached_property
    def origins(self) -> dict[Value, Value]:
        """For each value that is an input of the state or a weight, or a part of one that stands at
        a place known before, in any shape or precision, that input.
        """
        found = {v: v for v in (*self._updated, *self._weights)}
        stack = list(found)
        while stack:
            value = stack.pop()
            for node in self._touching.get(value, ()):
                reached: tuple[Value, ...] = ()
                if node.op is None:
                    if node.owner is not None:
                        reached = node.values
                elif node.op.inputs[0] is value and (
                    traits_of(node.op.name).relayout or _takes_part(node.op)
                ):
                    reached = node.op.outputs
                for other in reached:
                    if other not in found and other.data is None:
                        found[other] = found[value]
                        stack.append(other)
        return found

    @property
    def stacked_weights(self) -> set[Value]:
        """Weights with a leading dimension of layers, which a loop written out takes one by one."""
        if not self._weights:
            return set()
        return {
            self.origins[node.op.inputs[0]]
            for node in self._nodes
            if node.op is not None
            and _takes_part(node.op)
            and node.rule.operands[0][0] == REPLICATED_FACTOR
            and self.origins.get(node.op.inputs[0]) in self._weights
        }

    @functools.cached_property
    def weight_products(self) -> tuple[tuple[Node, int, Value], ...]:
        """Forward products with weights: (node, the weights' operand, the input)."""
        origin = self.origins
        found = []
        for node in self._nodes:
            if node.op is None or not is_matmul(node.op) or node.op.backward:
                continue
            held = [i for i, v in enumerate(node.op.inputs) if v in origin]
            if len(held) == 1:
                found.append((node, held[0], origin[node.op.inputs[held[0]]]))
        return tuple(found)


def _takes_part(op: Op) -> bool:
    """True if results are parts of the operand that stand at places known before."""
    traits = traits_of(op.name)
    return traits.view == "same" and traits.traffic == "part"


def _users(program: Program) -> dict[Value, list[Op]]:
    users: dict[Value, list[Op]] = {}
    for op in program.walk():
        if not op.regions:
            for value in op.inputs:
                if value.data is None:
                    users.setdefault(value, []).append(op)
    return users


def _only_elementwise(
    value: Value,
    same: dict[Value, tuple[Value, ...]],
    users: dict[Value, list[Op]],
    updated: set[Value],
) -> bool:
    """True if only elementwise ops follow from the value, up to updated state."""
    stack = list(same.get(value, (value,)))
    seen = set(stack)
    while stack:
        source = stack.pop()
        for op in users.get(source, ()):
            for result in op.outputs:
                if not traits_of(op.name).elementwise or result.shape != source.shape:
                    return False
                for reached in same.get(result, (result,)):
                    if reached not in seen and reached not in updated:
                        seen.add(reached)
                        stack.append(reached)
    return True
