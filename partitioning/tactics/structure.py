"""Finds the parts of a step by its structure: parameters, optimizer state, gradients, and the uses
of weights.
"""

from __future__ import annotations

import weakref

from ..decide.actions import Context
from ..decide.graph import Graph, Node
from ..ir.program import Op, Value
from ..rules import traits_of


def is_matmul(op: Op) -> bool:
    """True if an op multiplies two operands over dimensions that it contracts."""
    return traits_of(op.name).flops == "matmul"


def data(context: Context) -> list[Value]:
    """Inputs that are not state, such as the batch."""
    state = set(context.graph.updated)
    return [v for v in context.inputs if v not in state]


def parameters(context: Context) -> list[Value]:
    """State that the step computes with, beyond updating it elementwise: a model's parameters."""
    return _split_state(context.graph)[0]


def optimizer_state(context: Context) -> list[Value]:
    """State arrays that only enter their own elementwise update: moments, averages."""
    return _split_state(context.graph)[1]


#: What `_split_state` and `gradients` found: a search asks for the same many times.
_SPLIT: weakref.WeakKeyDictionary[Graph, tuple[list[Value], list[Value]]]
_SPLIT = weakref.WeakKeyDictionary()
_GRADIENTS: weakref.WeakKeyDictionary[Graph, list[Value]] = weakref.WeakKeyDictionary()


def _split_state(graph: Graph) -> tuple[list[Value], list[Value]]:
    if graph not in _SPLIT:
        _SPLIT[graph] = _find_split_state(graph)
    return _SPLIT[graph]


def _find_split_state(graph: Graph) -> tuple[list[Value], list[Value]]:
    same = _same_arrays(graph)
    users = _users(graph)
    updated = {v for after in graph.updated.values() for v in same.get(after, (after,))}
    used: list[Value] = []
    kept: list[Value] = []
    for value in graph.updated:
        if value.shape:
            (kept if _only_elementwise(value, same, users, updated) else used).append(value)
    return used, kept


def _same_arrays(graph: Graph) -> dict[Value, tuple[Value, ...]]:
    """Maps each value that a loop or branch ties to others to all of them: they are one array."""
    parent: dict[Value, Value] = {}

    def root(value: Value) -> Value:
        while parent.setdefault(value, value) is not value:
            value = parent[value]
        return value

    for node in graph.nodes:
        if node.op is None and node.owner is not None:
            first = root(node.values[0])
            for value in node.values[1:]:
                parent[root(value)] = first
    groups: dict[Value, list[Value]] = {}
    for value in parent:
        groups.setdefault(root(value), []).append(value)
    return {v: tuple(group) for group in groups.values() for v in group}


def _users(graph: Graph) -> dict[Value, list[Op]]:
    users: dict[Value, list[Op]] = {}
    for op in graph.program.walk():
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


def gradients(context: Context) -> list[Value]:
    """The arrays that elementwise updates of the state begin with, as differentiation made them.

    Walks back from every updated state array through elementwise ops of its shape to the first
    values that no such op made.
    """
    graph = context.graph
    if graph not in _GRADIENTS:
        _GRADIENTS[graph] = _find_gradients(graph)
    return _GRADIENTS[graph]


def _find_gradients(graph: Graph) -> list[Value]:
    same = _same_arrays(graph)
    found: dict[Value, None] = {}
    ends = set(graph.program.inputs) | set(graph.updated.values())
    ends = {v for end in ends for v in same.get(end, (end,))}
    for before, after in graph.updated.items():
        if not before.shape:
            continue
        stack = list(same.get(after, (after,)))
        seen = set(stack)
        first = len(stack)
        while stack:
            value = stack.pop()
            first -= 1
            op = graph.makers.get(value)
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
    return list(found)


def origins(context: Context) -> dict[Value, Value]:
    """For each value that is a state input in another shape or precision, that input."""
    graph = context.graph
    found = {v: v for v in graph.updated}
    stack = list(found)
    while stack:
        value = stack.pop()
        for node in graph.touching.get(value, ()):
            reached: tuple[Value, ...] = ()
            if node.op is None:
                if node.owner is not None:
                    reached = node.values
            elif traits_of(node.op.name).relayout and node.op.inputs[0] is value:
                reached = node.op.outputs
            for other in reached:
                if other not in found and other.data is None:
                    found[other] = found[value]
                    stack.append(other)
    return found


def weight_products(context: Context) -> list[tuple[Node, int, Value]]:
    """Forward products with weights: (node, the weights' operand, the state input)."""
    origin = origins(context)
    found = []
    for node in context.graph.nodes:
        if node.op is None or not is_matmul(node.op) or node.op.backward:
            continue
        held = [i for i, v in enumerate(node.op.inputs) if v in origin]
        if len(held) == 1:
            found.append((node, held[0], origin[node.op.inputs[held[0]]]))
    return found
