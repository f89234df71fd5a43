"""How often a loop turns at most, where it counts its turns."""

from __future__ import annotations

from typing import Any


def most_turns(op: Any) -> int | None:
    """The most turns of a `while` that goes on only while a counter is below a bound.

    The counter begins with a number, grows by the same number in each turn, and the bound is one.

    Returns:
      The number; None where the loop has no such counter.
    """
    cond, body = op.regions
    skip, consts = op.params["cond_nconsts"], op.params["body_nconsts"]
    makers = {value: inner for inner in cond.ops for value in inner.outputs}
    added = {value: inner for inner in body.ops for value in inner.outputs}
    found = []
    for counter, bound in _bounds(cond.outputs[0], makers):
        if counter not in cond.inputs[skip:]:
            continue
        at = cond.inputs.index(counter) - skip
        start = _number(op.inputs[skip + consts + at])
        turn = added.get(body.outputs[at])
        if start is None or turn is None or turn.name != "add":
            continue
        first, second = turn.inputs
        if second is body.inputs[consts + at]:
            first, second = second, first
        step = _number(second)
        if first is body.inputs[consts + at] and step is not None and step > 0:
            found.append(max(-(-(bound - start) // step), 0))
    return min(found, default=None)


def _bounds(value: Any, makers: dict[Any, Any]) -> list[tuple[Any, int]]:
    """Values that are below a number wherever `value` is true, with that number."""
    op = makers.get(value)
    if op is None:
        return []
    if op.name == "and":
        return [pair for operand in op.inputs for pair in _bounds(operand, makers)]
    less = {"lt": 0, "le": 1}
    if op.name in less and (bound := _number(op.inputs[1])) is not None:
        return [(op.inputs[0], bound + less[op.name])]
    return []


def _number(value: Any) -> int | None:
    """The whole number that a value always is, or None."""
    data = value.data
    if data is None or data.shape or data.dtype.kind not in "iu":
        return None
    return int(data)
