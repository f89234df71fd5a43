"""Divides a micro-batch's program into phases, each of which sends all micro-batches through.

A step may update critics, and then a policy by the updated critics: what it computes of the batch
behind the first update waits for all micro-batches. A *phase* is what needs no sum of its own. A
loop over steps of an optimizer stands between phases, and its body has phases of its own. A branch
of a condition is a phase that is left out where the other one is taken.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterable, Iterator, Mapping, Sequence

import jax.numpy as jnp
from jax import lax

from ...ir.program import Op, Program, Value
from ...rules import traits_of
from .conditions import conditions_apart
from .dependence import TOTALS, in_microbatches, refuse, walk
from .loops import cut_rows
from .microbatches import MICROBATCH, crosses_microbatches, knows_microbatch

#: (a scalar, the number of a branch): taken where the scalar is that number.
Case = tuple[Value, int]


@dataclasses.dataclass(frozen=True, eq=False)
class Phase:
    """A part of a step.

    Attributes:
      program: its inputs are those of the step, and values that earlier parts hand over; its
        outputs what it hands over, and of the last part what the step returns.
      data: inputs that are rows of all micro-batches, and no parameters.
      guard: from scalar inputs, whether micro-batches have anything to do; None if always.
    """

    program: Program
    data: frozenset[Value]
    guard: Program | None = None


@dataclasses.dataclass(frozen=True, eq=False)
class StepLoop:
    """A loop over steps.

    Attributes:
      op: the loop, between values that no micro-batch has of its own.
      parts: of its body.
    """

    op: Op
    parts: tuple[Part, ...]

    @property
    def body(self) -> Program:
        """The program of a turn."""
        return self.op.regions[0]

    def ties(self) -> Iterator[tuple[Value, ...]]:
        """Values that are one array: outside, inside, and behind a turn."""
        consts, carries = self.op.params["num_consts"], self.op.params["num_carry"]
        for i, (outer, inner) in enumerate(zip(self.op.inputs, self.body.inputs, strict=True)):
            if i < consts:
                yield outer, inner
            elif i < consts + carries:
                at = i - consts
                yield outer, inner, self.body.outputs[at], self.op.outputs[at]


Part = Phase | StepLoop


def phases(program: Program, microbatches: int, data: Iterable[Value] = ()) -> tuple[Part, ...]:
    """Divides a program.

    Args:
      program: of a micro-batch, or of a turn of a loop.
      microbatches: how many there are.
      data: inputs that are rows of all micro-batches.

    Raises:
      ValueError: an op mixes the rows of different micro-batches where no phase can end.
    """
    conditions_apart(program)
    return _Division(program, microbatches, frozenset(data)).parts()


def is_loop(op: Op) -> bool:
    """True if an op of a micro-batch's program is a loop over steps."""
    return op.name == "scan" and any(
        o.name in TOTALS for region in op.regions for o in region.walk()
    )


class _Division:
    """The phase of each op of a program."""

    def __init__(self, program: Program, microbatches: int, data: frozenset[Value]):
        self.program, self.count = program, microbatches
        self.data = set(data)
        self.makers = {v: op for op in program.ops for v in op.outputs}
        self.split: set[Value] = set()
        self.trained: set[Value] = set()
        self.avail: dict[Value, int] = dict.fromkeys(program.constants, 0)
        for value in program.inputs:
            self.avail[value] = 0
            if in_microbatches(value):
                self.split.add(value)
            elif jnp.issubdtype(value.dtype, jnp.inexact) and value not in data:
                self.trained.add(value)
        self.cases = _cases(program)
        self.phase: dict[Op, int] = {}
        self._as_soon_as_possible()
        self._as_late_as_possible()
        self._available()

    def _level(self, op: Op) -> int:
        return max((self.avail[v] for v in op.inputs if v.data is None), default=0)

    def _as_soon_as_possible(self) -> None:
        """Finds the first phase of each value, and what is split and trained."""
        last_of: dict[Case, int] = {}
        for op in self.program.ops:
            read = [v for v in op.inputs if v.data is None]
            level, loop = self._level(op), is_loop(op)
            if not loop:
                inner = (o for o in walk(op) if crosses_microbatches(o))
                sums = (o for r in op.regions for o in r.walk() if o.name in TOTALS)
                for wrong in (*inner, *sums):
                    refuse(wrong, op)
            trained = not self.trained.isdisjoint(read)
            if loop:
                self.phase[op] = level
                level += 1
                trained = True
            elif op.name in TOTALS:
                level += trained
                self.data.update(op.outputs if op.name == "collect" else ())
                trained = trained and op.name != "collect"
            elif knows_microbatch(op) or not self.split.isdisjoint(read):
                self.split.update(op.outputs)
                if trained:
                    # Each branch of a condition has phases of its own.
                    cases = self.cases_of(op)
                    before = (last_of.get((w, case - 1), case - 1) for w, case in cases if case)
                    level = max([level, *(at + 1 for at in before)])
                    last_of.update({c: max(level, last_of.get(c, 0)) for c in cases})
            elif not trained and not self.data.isdisjoint(read):
                self.data.update(op.outputs)
            if trained:
                self.trained.update(op.outputs)
            self.avail.update(dict.fromkeys(op.outputs, level))

    def is_staged(self, op: Op) -> bool:
        """True if an op belongs to one phase; others are computed wherever they are read."""
        first = op.outputs[0]
        return op.name not in TOTALS and first in self.split and first in self.trained

    def cases_of(self, op: Op) -> frozenset[Case]:
        """The branches that all readers of an op serve."""
        known = [self.cases[v] for v in op.outputs if v in self.cases]
        return functools.reduce(frozenset.__and__, known) if known else frozenset()

    def is_total(self, op: Op) -> bool:
        """True if an op sums up or collects what depends on parameters."""
        return op.name in TOTALS and op.inputs[0] in self.trained

    def _as_late_as_possible(self) -> None:
        """Gives each staged op the last phase that it can be in."""
        staged = [op for op in self.program.ops if self.is_staged(op)]
        self.last = top = max((self.avail[op.outputs[0]] for op in staged), default=0)
        for level in self.phase.values():  # of loops
            self.last = max(self.last, level + 1)
        of_case: dict[frozenset[Case], int] = {}
        for op in staged:
            cases, level = self.cases_of(op), self.avail[op.outputs[0]]
            of_case[cases] = max(of_case.get(cases, 0), level)
        due: dict[Value, int] = {}
        for op in reversed(self.program.ops):
            now = min((due.get(v, self.last + 1) for v in op.outputs), default=self.last + 1)
            if is_loop(op):
                now = self.phase[op]
            elif self.is_staged(op):
                cases = self.cases_of(op)
                now = self.phase[op] = min(now, of_case[cases] if cases else top)
            elif self.is_total(op):
                now -= 1
            for value in op.inputs:
                due[value] = min(due.get(value, self.last + 1), now)
        for op in self.program.ops:
            if self.is_total(op):
                self.phase[op] = self.phase[self.makers[op.inputs[0]]]
            elif self.is_staged(op):
                # What only a metric waits for stays with what it reads, which need not be kept.
                makers = [self.makers[v] for v in op.inputs if v in self.makers]
                read = [self.phase[maker] for maker in makers if self.is_staged(maker)]
                if read:
                    soonest = max([*read, self.avail[op.outputs[0]]])
                    self.phase[op] = min(self.phase[op], soonest)

    def _available(self) -> None:
        """Finds when each value is there, and what is made behind a phase's micro-batches."""
        self.raw: set[Value] = set()
        behind_loop: set[Value] = set()
        outputs = set(self.program.outputs)
        for op in self.program.ops:
            level = self._level(op)
            if op in self.phase:
                level = self.phase[op] + (not self.is_staged(op))
            self.avail.update(dict.fromkeys(op.outputs, level))
            if self.is_staged(op):
                if self._level(op) > level:
                    refuse(op, op)
            elif is_loop(op):
                behind_loop.update(op.outputs)
            elif self.is_total(op):
                self.raw.update(op.outputs)
            elif op.outputs[0] not in self.split:
                late = [self.avail[v] for v in op.inputs if v in behind_loop]
                if any(v in self.raw and v not in outputs for v in op.inputs):
                    self.raw.update(op.outputs)
                    # Loops run behind the micro-batches of their phase.
                    level = max([level, *(at + 1 for at in late)])
                    self.avail.update(dict.fromkeys(op.outputs, level))
                    self.last = max(self.last, level - 1)
                elif late:
                    behind_loop.update(op.outputs)
        self.behind_loop = behind_loop

    def parts(self) -> tuple[Part, ...]:
        """The parts of the program, in order."""
        crossing = self._crossing()
        loops: dict[int, list[Op]] = {}
        for op in self.program.ops:
            if is_loop(op):
                loops.setdefault(self.phase[op], []).append(op)
        found: list[Part] = []
        needed: set[Value] = set(self.program.outputs)
        for number in reversed(range(self.last + 1)):
            for loop in reversed(loops.get(number, [])):
                found.append(self._loop(loop))
                needed.update(v for v in loop.inputs if v.data is None)
            program = self._program(number, crossing, needed)
            needed.update(program.inputs[len(self.program.inputs) :])
            if program.ops or number == self.last:
                data = frozenset(v for v in program.inputs if v in self.data)
                found.append(Phase(program, data, self._guard(number)))
        return tuple(reversed(found))

    def _loop(self, op: Op) -> StepLoop:
        (body,) = op.regions
        pairs = zip(op.inputs, body.inputs, strict=True)
        return StepLoop(op, phases(body, self.count, [b for v, b in pairs if v in self.data]))

    def _program(
        self, number: int, crossing: Mapping[tuple[Value, int], CrossingValue], needed: set[Value]
    ) -> Program:
        """The program of a phase; `needed` is what later parts read, or the step returns."""
        ops: list[Op] = []
        now = {v: c for (v, reader), c in crossing.items() if reader == number}
        renamed = {v: c.rows for v, c in now.items()}
        for one in now.values():
            ops += one.behind
        before = dict.fromkeys(
            c.value for (v, _), c in crossing.items() if self._phase_of(v) == number
        )
        for op in self.program.ops:
            if op in self.phase:
                if self.phase[op] == number and not is_loop(op):
                    if renamed.keys() & set(op.inputs):
                        read = [renamed.get(v, v) for v in op.inputs]
                        op = op.on(read, op.outputs, None, op.regions)
                    ops.append(op)
                continue
            (first, *_), level = op.outputs, self.avail[op.outputs[0]]
            early = first in self.split or (first in self.behind_loop and number < self.last)
            here = level == number + 1 if first in self.raw else level <= number + (not early)
            if here:
                ops.append(op)
        for (_, _), one in crossing.items():
            if one.value in before:
                ops += [o for o in one.before if o not in ops]
        known = set(self.program.inputs)
        if number == self.last:
            outputs = self.program.outputs
        else:
            ready = (v for op in ops for v in op.outputs)
            outputs = tuple(
                v
                for v in ready
                if v in needed and (v in self.raw or v in self.data or self.avail[v] <= number)
            )
        needed.difference_update(outputs)
        program = Program(self.program.inputs, outputs, ops, self.program.constants)
        program.drop_dead()
        made = {v for op in program.ops for v in op.outputs}
        read = [v for op in program.ops for v in op.inputs] + [*outputs]
        constants = {*self.program.constants}
        handed = [
            v for v in dict.fromkeys(read)
            if v.data is None and v not in made and v not in known and v not in constants
        ]  # fmt: skip
        program.inputs = (*self.program.inputs, *handed)
        program.signature = self.program.signature
        return program

    def _phase_of(self, value: Value) -> int:
        return self.phase.get(self.makers[value], -1) if value in self.makers else -1

    def _crossing(self) -> dict[tuple[Value, int], CrossingValue]:
        """Values of a micro-batch that a phase makes and a later one reads, by value and reader."""
        kept: dict[Value, CrossingValue] = {}
        found: dict[tuple[Value, int], CrossingValue] = {}
        for op in self.program.ops:
            for value in op.inputs:
                maker = self.makers.get(value)
                if maker is None or op not in self.phase or not self.is_staged(maker):
                    continue
                if self.phase[maker] < self.phase[op]:
                    first = kept.setdefault(value, _stacked(maker, value, self.count))
                    found.setdefault((value, self.phase[op]), first.again(maker, value))
                    self.data.add(first.value)
        return found

    def _guard(self, number: int) -> Program | None:
        """Tells whether a phase's micro-batches have anything to do."""
        own = [op for op, phase in self.phase.items() if phase == number and not is_loop(op)]
        if not own:
            return None
        both = functools.reduce(frozenset.__and__, map(self.cases_of, own))
        outputs: list[Value] = []
        ops: list[Op] = []
        for which, case in both:
            if self._of_scalars(which):
                at = Value((), which.dtype, data=jnp.asarray(case, which.dtype), layout=())
                outputs.append(Value((), jnp.dtype(bool), layout=()))
                ops.append(Op("eq", lax.eq_p, (which, at), (outputs[-1],)))
        if not outputs:
            return None
        program = Program(
            self.program.inputs, tuple(outputs), [*self.program.ops, *ops], self.program.constants
        )
        program.drop_dead()
        read = {v for op in program.ops for v in op.inputs}
        program.inputs = tuple(v for v in program.inputs if v in read)
        return program

    def _of_scalars(self, value: Value) -> bool:
        """True if a value is computed from scalar inputs alone."""
        stack, seen = [value], set()
        while stack:
            one = stack.pop()
            if one.data is not None or one in seen:
                continue
            seen.add(one)
            op = self.makers.get(one)
            if one.ndim or one in self.split or one in self.raw:
                return False
            if op is not None:
                if op in self.phase or op.name in TOTALS or op.regions:
                    return False
                stack.extend(op.inputs)
        return True


@dataclasses.dataclass(frozen=True, eq=False)
class CrossingValue:
    """A value of every micro-batch that a later phase reads.

    Attributes:
      value: [microbatches, ...] of all of them.
      before: the ops that make it.
      behind: the ops that cut a micro-batch's part from it again.
      rows: that part.
    """

    value: Value
    before: tuple[Op, ...]
    behind: tuple[Op, ...] = ()
    rows: Value = dataclasses.field(default_factory=lambda: Value((), jnp.dtype(bool)))

    def again(self, maker: Op, value: Value) -> CrossingValue:
        """The same, with what a further phase reads."""
        part, rows = _lead(value), value.like()
        slice_ = cut_rows(maker, self.value, part, MICROBATCH)
        return CrossingValue(self.value, self.before, (slice_, _reshaped(maker, part, rows)), rows)


def _lead(value: Value) -> Value:
    """A value with a first dimension of 1, which is tiled over micro-batches."""
    layout = tuple(
        tuple(a for a in axes if a != MICROBATCH) for axes in value.layout or ((),) * value.ndim
    )
    return value.like((1, *value.shape), ((MICROBATCH,), *layout))


def _reshaped(maker: Op, value: Value, into: Value) -> Op:
    params = {"new_sizes": into.shape, "dimensions": None, "sharding": None}
    return maker.beside("reshape", (value,), into, params, lax.reshape_p)


def _stacked(maker: Op, value: Value, count: int) -> CrossingValue:
    part = _lead(value)
    whole = part.like((count, *value.shape), ((), *(part.layout or ())[1:]))
    collect = maker.beside("collect", (part,), whole, {"dim": 0})
    return CrossingValue(whole, (_reshaped(maker, value, part), collect))


def _cases(program: Program) -> dict[Value, frozenset[Case]]:
    """For each value that is read the branches of selections by a scalar that all readers serve."""
    found: dict[Value, frozenset[Case]] = {v: frozenset() for v in program.outputs}
    for op in reversed(program.ops):
        known = [found[v] for v in op.outputs if v in found]
        served = functools.reduce(frozenset.__and__, known) if known else frozenset()
        by_scalar = traits_of(op.name).selects and not op.inputs[0].ndim
        for i, value in enumerate(op.inputs):
            if is_loop(op):
                own: frozenset[Case] = frozenset()
            elif by_scalar and i:
                own = served | {(op.inputs[0], i - 1)}
            else:
                own = served
            found[value] = found[value] & own if value in found else own
    return found


def parts_of(parts: Sequence[Part]) -> Iterator[Part]:
    """Every part, with those of loops behind the loop that has them."""
    for part in parts:
        yield part
        if isinstance(part, StepLoop):
            yield from parts_of(part.parts)
