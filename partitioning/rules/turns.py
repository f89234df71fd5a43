"""Loops with independent turns, of which every device can run its share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import jax.numpy as jnp

from ..ir.program import Op, Program, Value
from .factor import REPLICATED_FACTOR, Rule
from .traits import traits_of


class Turns(NamedTuple):
    """The carries of a loop with independent turns; those not named stay as they are.

    Attributes:
      sums: positions of those that turns only add to.
      counts: positions of integers that grow by the same in every turn, with the growth.
      rule: the one factor is that of the turns, carried by scanned and stacked arrays.
    """

    sums: tuple[int, ...]
    counts: dict[int, int]
    rule: Rule


def turns_of(op: Op) -> Turns | None:
    """The carries of a scan, if no turn reads what another one made; else None.

    A carry may be a sum of what the turns find, an integer that counts them, or stay as it is.
    Calls of the host keep a loop in order.
    """
    (body,) = op.regions
    if op.effects or any(o.effects or traits_of(o.name).host for o in body.walk()):
        return None
    consts, carry = op.params["num_consts"], op.params["num_carry"]
    makers = {value: made for made in body.ops for value in made.outputs}
    readers = _readers(body)
    sums: list[int] = []
    counts: dict[int, int] = {}
    for i in range(carry):
        before, after = body.inputs[consts + i], body.outputs[i]
        if before is after:
            continue
        growth = _growth(before, makers.get(after))
        if growth is not None:
            counts[i] = growth
        elif _is_sum(before, after, readers):
            sums.append(i)
        else:
            return None
    dims = [_leading(v, i >= consts + carry) for i, v in enumerate(op.inputs)]
    results = [_leading(v, i >= carry) for i, v in enumerate(op.outputs)]
    rule = Rule(tuple(dims), tuple(results), (op.params["length"],))
    return Turns(tuple(sums), counts, rule)


def _leading(value: Value, scanned: bool) -> tuple[int, ...]:
    rest = (REPLICATED_FACTOR,) * value.ndim
    return (0, *rest[1:]) if scanned else rest


def _growth(before: Value, op: Op | None) -> int | None:
    """The integer that an op adds to a carried integer, where that is known; else None."""
    if op is None or before.shape or not jnp.issubdtype(before.dtype, jnp.integer):
        return None
    signs = traits_of(op.name).signs
    for own, other in ((0, 1), (1, 0)):
        if len(signs) == 2 and op.inputs[own] is before and signs[own] == 1:
            step = op.inputs[other].data
            return None if step is None else signs[other] * int(step)
    return None


def _readers(body: Program) -> dict[Value, list[Op | None]]:
    """The ops that read a value, once per operand; None stands for the body's result."""
    readers: dict[Value, list[Op | None]] = {}
    for op in body.ops:
        for value in op.inputs:
            readers.setdefault(value, []).append(op)
    for value in body.outputs:
        readers.setdefault(value, []).append(None)
    return readers


def _is_sum(before: Value, after: Value, readers: Mapping[Value, list[Op | None]]) -> bool:
    """True if the carry `after` is `before`, which nothing else reads, and what is added to it."""
    if not jnp.issubdtype(before.dtype, jnp.number):
        return False
    value = before
    while len(readers.get(value, ())) == 1:
        (reader,) = readers[value]
        if reader is None:
            return value is after
        traits = traits_of(reader.name)
        # A name, or the loss of a weak type, changes nothing.
        same = traits.relayout and not traits.rearranges and traits.view != "never"
        signs = (1,) * len(reader.outputs) if same else traits.signs
        if len(reader.outputs) > 1 or not signs or signs[reader.inputs.index(value)] != 1:
            return False
        (value,) = reader.outputs
        if (value.shape, value.dtype) != (before.shape, before.dtype):
            return False
    return False
