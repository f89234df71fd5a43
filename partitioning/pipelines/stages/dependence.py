"""Tells the parts of a micro-batch's program: before, within and behind the micro-batches.

A value is *whole* if it is the same for every micro-batch, *split* if each micro-batch has its own,
and *total* if it takes all of them. A step can be pipelined if no split value reads a total one.
What sums up data alone, such as the number of valid tokens, is no such total: it is computed before
the first micro-batch, and whole from then on.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Iterator

import jax.numpy as jnp

from ...ir.program import Op, Program, Value
from .microbatches import MICROBATCH, crosses_microbatches, knows_microbatch

#: The ops that read the values of all micro-batches.
TOTALS = ("accumulate", "collect")


class Extent(enum.Enum):
    """The micro-batches that a value depends on: none, its own, or all."""

    WHOLE = 0
    SPLIT = 1
    TOTAL = 2


class Dependence:
    """The dependences of a micro-batch's program.

    Args:
      program: what `microbatched` returns.

    Attributes:
      program: the program.
      makers: the op that makes a value.
      extent: of every value that is no literal.
      trained: values that depend on a parameter: floats that are not split.
      forward, backward: the ops to cut into segments, in order: those of split values that depend
        on a parameter.
      prepared: the ops `accumulate` and `collect` of data alone, in order.
      totals: the other ones, in order.
      tail: the ops behind the last micro-batch, in order, with those of whole values that they
        read.

    Raises:
      ValueError: an op mixes the rows of different micro-batches.
    """

    def __init__(self, program: Program):
        self.program = program
        self.makers: dict[Value, Op] = {v: op for op in program.ops for v in op.outputs}
        self.extent: dict[Value, Extent] = dict.fromkeys(program.constants, Extent.WHOLE)
        self.trained: set[Value] = set()
        for value in program.inputs:
            split = in_microbatches(value)
            self.extent[value] = Extent.SPLIT if split else Extent.WHOLE
            if not split and jnp.issubdtype(value.dtype, jnp.inexact):
                self.trained.add(value)
        self.forward: list[Op] = []
        self.backward: list[Op] = []
        self.prepared: list[Op] = []
        self.totals: list[Op] = []
        late: list[Op] = []
        self._cause: dict[Value, Op] = {}
        after_loss: set[Value] = set()
        for op in program.ops:
            found = self._extent_of(op)
            self.extent.update(dict.fromkeys(op.outputs, found))
            if not self.trained.isdisjoint(op.inputs):
                self.trained.update(op.outputs)
            if op.name in TOTALS:
                (self.totals if found is Extent.TOTAL else self.prepared).append(op)
            elif found is Extent.TOTAL:
                late.append(op)
            elif self.is_staged(op):
                turned = op.backward or not after_loss.isdisjoint(op.inputs)
                (self.backward if turned else self.forward).append(op)
                if turned:
                    after_loss.update(op.outputs)
        read = [v for op in late for v in op.inputs]
        kept = {*late, *self.closure([*read, *program.outputs])}
        self.tail = [op for op in program.ops if op in kept]

    def is_staged(self, op: Op) -> bool:
        """True if an op belongs to one segment; others are computed wherever they are read."""
        split = self.extent[op.outputs[0]] is Extent.SPLIT
        return op.name not in TOTALS and split and any(v in self.trained for v in op.outputs)

    def _extent_of(self, op: Op) -> Extent:
        """The extent of an op's results; checks that it keeps micro-batches apart."""
        read = [v for v in op.inputs if v.data is None]
        known = {self.extent[v] for v in read}
        if op.name in TOTALS:
            if Extent.TOTAL in known:
                self._refuse(op, read)
            if not self.trained.issuperset(read):
                return Extent.WHOLE
            self._cause[op.outputs[0]] = op
            return Extent.TOTAL
        inside = next((o for o in _walk(op) if crosses_microbatches(o) or o.name in TOTALS), None)
        if inside is not None:
            self._refuse(inside, (), op)
        if knows_microbatch(op):
            known.add(Extent.SPLIT)
        if known >= {Extent.SPLIT, Extent.TOTAL}:
            self._refuse(op, read)
        found = max(known, key=lambda one: one.value, default=Extent.WHOLE)
        if found is Extent.TOTAL:
            cause = next(self._cause[v] for v in read if v in self._cause)
            self._cause.update(dict.fromkeys(op.outputs, cause))
        return found

    def _refuse(self, op: Op, read: Iterable[Value], region: Op | None = None) -> None:
        """Raises ValueError about an op that reads totals too early, or one within a region."""
        outputs = set(self.program.outputs)
        updated = next((v for v in read if v in self._cause and v in outputs and v.ndim), None)
        if updated is not None:
            raise ValueError(
                f"the pipeline cannot split the batch: the step updates {updated.path} and then "
                f"computes with it on the batch ({_place(op)}), which is a second step of an "
                "optimizer. Make one step of the optimizer a call, or leave the pipeline out"
            )
        cause = next((self._cause[v] for v in read if v in self._cause), op)
        maker = self.makers.get(cause.inputs[0], cause)
        mixes = _place(maker if cause.name in TOTALS else op)
        within = "" if region is None or region is op else f" within {_place(region)}"
        reader = "" if cause is op else f", and {_place(op)} reads what comes of it"
        raise ValueError(
            f"the pipeline cannot split the batch: {mixes} mixes the rows of all micro-batches"
            f"{within}{reader} before the last one is done. Normalise per row, divide by what "
            "depends on the data alone, make one step of the optimizer a call, outside of loops "
            "and conditions, or leave the pipeline out"
        )

    def closure(self, values: Iterable[Value]) -> set[Op]:
        """The ops, of no segment, that values need to be computed from the program's inputs."""
        found: set[Op] = set()
        stack = [v for v in values if v.data is None]
        while stack:
            op = self.makers.get(stack.pop())
            if op is None or op in found or op.name in TOTALS or self.is_staged(op):
                continue
            found.add(op)
            stack.extend(v for v in op.inputs if v.data is None)
        return found


def in_microbatches(value: Value) -> bool:
    """True if a value of a lowered program is tiled over micro-batches."""
    return any(MICROBATCH in axes for axes in value.layout or ())


def _walk(op: Op) -> Iterator[Op]:
    yield op
    for region in op.regions:
        yield from region.walk()


def _place(op: Op) -> str:
    return f"{op.name} at {op.source or 'an unknown line'}"
