"""Writes a loop of which every device runs its share of the turns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import jax
import numpy as np
from jax import lax

from ..ir.program import Op, Program, Value
from ..rules.factor import LocalWriter
from ..rules.turns import Turns


class LoopWriter(LocalWriter, Protocol):
    """Writes the local ops around a loop.

    Attributes:
      ops: those written so far.
    """

    ops: list[Op]

    def reduce(
        self, op: Op, results: list[Value], axes: tuple[str, ...], monoid: str
    ) -> list[Value]:
        """Writes the reduction that results owe over axes."""


def zeros_like(like: Op, value: Value) -> tuple[Op, Value]:
    """An op that fills a local value with zeros, of the source line of `like`, and the value."""
    zero = Value((), value.dtype, data=np.zeros((), value.dtype))
    filled = Value(value.shape, value.dtype, value.weak_type, layout=value.layout)
    params = {"shape": value.shape, "broadcast_dimensions": (), "sharding": None}
    return like.beside("broadcast_in_dim", (zero,), filled, params, lax.broadcast_in_dim_p), filled


def write_share(
    writer: LoopWriter,
    op: Op,
    turns: Turns,
    axes: tuple[str, ...],
    share: int,
    operands: Sequence[Value],
    regions: tuple[Program, ...],
    results: Sequence[Value],
) -> list[Value]:
    """Writes a loop with turns that are split over axes.

    A sum starts from zeros on every device, and what the turns of all devices add up to is added to
    its start. A count starts where the device's first turn is.

    Args:
      writer: writes local ops.
      op: the loop of the whole program.
      turns: what becomes of its carries.
      axes: the axes, major to minor.
      share: the turns that each device runs.
      operands: local ones; the scanned ones are shares.
      regions: the local body.
      results: the loop's local results.

    Returns:
      The results, with sums and counts as after all turns.
    """
    first, length = op.params["num_consts"], op.params["length"]
    inputs, after = list(operands), list(results)
    for i in turns.sums:
        fill, inputs[first + i] = zeros_like(op, results[i])
        writer.ops.append(fill)
    for i, growth in turns.counts.items():
        before = writer.offset(axes, share)

        def start(count: jax.Array, before: jax.Array, growth: int = growth) -> jax.Array:
            turn = length - share - before if op.params["reverse"] else before
            return count + turn.astype(count.dtype) * _wrapped(growth, count.dtype)

        (inputs[first + i],) = writer.function(op, start, [operands[first + i], before], [()])
    params = {
        **op.params, "length": share, "unroll": min(op.params["unroll"], share), "turns": axes
    }  # fmt: skip
    writer.ops.append(op.on(inputs, results, params, regions))
    if turns.sums:
        sums = writer.reduce(op, [results[i] for i in turns.sums], axes, "sum")
        for i, total in zip(turns.sums, sums, strict=True):
            after[i] = total
            if not writer.is_zero(op.inputs[first + i]):
                after[i] = total.like()
                pair = operands[first + i], total
                writer.ops.append(op.beside("add", pair, after[i], primitive=lax.add_p))
    for i, growth in turns.counts.items():

        def end(count: jax.Array, growth: int = growth) -> jax.Array:
            return count + _wrapped(length * growth, count.dtype)

        (after[i],) = writer.function(op, end, [operands[first + i]], [()])
    return after


def _wrapped(number: int, dtype: np.dtype) -> np.ndarray:
    """An integer as one of a dtype, in which it wraps around."""
    bits = 8 * dtype.itemsize
    return np.asarray(number % 2**bits, f"uint{bits}").astype(dtype)
