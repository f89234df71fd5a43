"""Tells the parts of a phase's program: before, within and behind the micro-batches.

A value is *whole* if it is the same for every micro-batch, *split* if each micro-batch has its own,
and *total* if it takes all of them. In a phase no split value reads a total one. What sums up data
alone, such as the number of valid tokens, is no such total: it is computed before the first
micro-batch, and whole from then on.
"""

from __future__ import annotations

import enum
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import NoReturn

import jax.numpy as jnp

from ...ir.program import Op, Program, Value
from .microbatches import MICROBATCH, knows_microbatch

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
      program: of a phase.
      data: inputs that are rows of all micro-batches, and no parameters.

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

    """

    def __init__(self, program: Program, data: Collection[Value] = ()):
        self.program = program
        self.makers: dict[Value, Op] = {v: op for op in program.ops for v in op.outputs}
        self.extent: dict[Value, Extent] = dict.fromkeys(program.constants, Extent.WHOLE)
        self.trained: set[Value] = set()
        for value in program.inputs:
            split = in_microbatches(value)
            self.extent[value] = Extent.SPLIT if split else Extent.WHOLE
            is_float = jnp.issubdtype(value.dtype, jnp.inexact)
            if is_float and not split and value not in data:
                self.trained.add(value)
        self.forward: list[Op] = []
        self.backward: list[Op] = []
        self.prepared: list[Op] = []
        self.totals: list[Op] = []
        late: list[Op] = []
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
        """The extent of an op's results."""
        read = [v for v in op.inputs if v.data is None]
        known = {self.extent[v] for v in read}
        if op.name in TOTALS:
            assert Extent.TOTAL not in known
            return Extent.TOTAL if self.trained.issuperset(read) else Extent.WHOLE
        if knows_microbatch(op):
            known.add(Extent.SPLIT)
        assert not known >= {Extent.SPLIT, Extent.TOTAL}
        return max(known, key=lambda one: one.value, default=Extent.WHOLE)

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


def walk(op: Op) -> Iterator[Op]:
    """An op with those of its regions."""
    yield op
    for region in op.regions:
        yield from region.walk()


def refuse(op: Op, region: Op) -> NoReturn:
    """Raises ValueError about an op within another one, which mixes the rows of micro-batches."""
    within = "" if region is op else f" within {_place(region)}"
    raise ValueError(
        f"the pipeline cannot split the batch: {_place(op)} mixes the rows of all micro-batches"
        f"{within} before the last one is done. Normalise per row, divide by what depends on the "
        "data alone, or leave the pipeline out"
    )


def _place(op: Op) -> str:
    return f"{op.name} at {op.source or 'an unknown line'}"


class Dependences:
    """The dependences of all phases of a step, as those of one program.

    Args:
      phases: of each phase.
      inputs: of the step, of bodies of loops, and what phases hand to others.
      data: those of them that are rows of all micro-batches.
      ties: values of loops that are one array in different turns.

    Attributes:
      inputs, ties: the same.
      trained, forward, backward, totals, tail: as of `Dependence`.
    """

    def __init__(
        self,
        phases: Sequence[Dependence],
        inputs: Sequence[Value],
        data: Collection[Value] = (),
        ties: Sequence[tuple[Value, ...]] = (),
    ):
        self.inputs, self.ties = tuple(inputs), tuple(ties)
        self.forward = [op for one in phases for op in one.forward]
        self.backward = [op for one in phases for op in one.backward]
        self.totals = [op for one in phases for op in one.totals]
        self.tail = list(dict.fromkeys(op for one in phases for op in one.tail))
        self.trained = {v for one in phases for v in one.trained} - set(data)
        self._makers: dict[Value, Op] = {}
        for one in phases:
            self._makers.update(one.makers)
        for value in self.inputs:
            self._makers.pop(value, None)
        self._staged = {*self.forward, *self.backward}

    def closure(self, values: Iterable[Value]) -> set[Op]:
        """The ops, of no segment, that values need to be computed from the inputs of a phase."""
        found: set[Op] = set()
        stack = [v for v in values if v.data is None]
        while stack:
            op = self._makers.get(stack.pop())
            if op is None or op in found or op.name in TOTALS or op in self._staged:
                continue
            found.add(op)
            stack.extend(v for v in op.inputs if v.data is None)
        return found
