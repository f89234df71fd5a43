"""Writes plans into programs: recomputed ops become a region of their own.

The region stands before the first op of the backward pass that reads one of its results. It also
takes a cotangent, made just before, and its operands go through a barrier: otherwise a compiler
would compute it early, or reuse the first computation.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence

from ..ir.program import Op, Program, Value
from ..rules import traits_of
from .cuts import Chain, runs_once
from .rotor import Act

#: For a program or a region of it, its chains in order, each with its plan.
Plans = Mapping[Program, Sequence[tuple[Chain, Sequence[Act]]]]


def rewritten(program: Program, plans: Plans) -> Program:
    """A program with the recomputation of plans in its chains, and in those of its regions.

    Args:
      program: stays as it is.
      plans: for each program its chains with their plans.
    """
    ops = list(program.ops)
    for i, op in enumerate(ops):
        regions = tuple(rewritten(region, plans) for region in op.regions)
        if any(new is not old for new, old in zip(regions, op.regions, strict=True)):
            ops[i] = op.on(op.inputs, op.outputs, regions=regions)
    made: set[Op] = set()
    parts, end = [], 0
    for chain, acts in plans.get(program, ()):
        writer = _Writer(chain, acts, program.ops)
        parts += [*ops[end : chain.turn], *writer.backward(ops[chain.turn : chain.end])]
        made |= writer.made
        end = chain.end
    if not made:
        same = all(new is old for new, old in zip(ops, program.ops, strict=True))
        return program if same else _with(program, ops)
    return _pruned(_with(program, [*parts, *ops[end:]]), made)


def _with(program: Program, ops: list[Op]) -> Program:
    return Program(program.inputs, program.outputs, ops, program.constants, program.signature)


class _Writer:
    """Writes the backward pass of one chain.

    Attributes:
      made: the regions that it wrote.
    """

    def __init__(self, chain: Chain, acts: Sequence[Act], ops: Sequence[Op]):
        self.chain = chain
        self.made: set[Op] = set()
        self.maker = {
            v: op for op in ops[chain.start : chain.turn] for v in op.outputs if not runs_once(op)
        }
        swept = list(itertools.takewhile(lambda act: act.what != "back", acts))
        self.queue = list(acts[len(swept) :])
        #: What there is of a value of the forward pass: itself, or what was made again.
        self.there: dict[Value, Value] = {}
        for act in swept:
            for value in self._wanted(act):
                self.there[value] = value
        self.dropped = {v for values in chain.saved for v in values if v not in self.there}
        self.ops: list[Op] = []
        self.cotangent: Value | None = None

    def _wanted(self, act: Act) -> Iterable[Value]:
        """The values kept after an act, besides those it hands on."""
        chain, k = self.chain, act.stage
        if act.what == "mark":
            return chain.handed[k - 1] if k else ()
        if act.what == "save":
            return (*(chain.handed[k - 1] if k else ()), *chain.saved[k], *chain.handed[k])
        return ()

    def backward(self, ops: Iterable[Op]) -> list[Op]:
        """The ops of the backward pass, with the recomputation that they need."""
        for op in ops:
            while self.queue and any(v in self.dropped and v not in self.there for v in op.inputs):
                self._next(op)
            if any(self.there.get(v, v) is not v for v in op.inputs):
                op = op.on([self.there.get(v, v) for v in op.inputs], op.outputs, None, op.regions)
            self.ops.append(op)
            self._made(op)
        return self.ops

    def _made(self, op: Op) -> None:
        """Takes note of the newest cotangent, of those that are arrays in any case."""
        if not op.backward or not op.outputs:
            return
        value, fused = op.outputs[0], traits_of(op.name).kernel == "fused"
        if value.shape and value.partial is None and not (fused and self.cotangent is not None):
            self.cotangent = value

    def _next(self, reader: Op) -> None:
        """Runs the acts up to the next backward pass of a stage."""
        while self.queue and self.queue[0].what == "back":
            self.queue.pop(0)
        run = list(itertools.takewhile(lambda act: act.what != "back", self.queue))
        del self.queue[: len(run)]
        wanted: dict[Value, None] = {}
        for i, act in enumerate(run):
            values = self._wanted(act)
            if i == 0:  # What the first stage reads is there.
                values = [v for v in values if v not in self.there]
            wanted.update(dict.fromkeys(v for v in values if v in self.maker))
        again = [v for v in wanted if v not in self.there or self.there[v] is not v]
        if again:
            self._write(again, reader)

    def _write(self, wanted: Sequence[Value], reader: Op) -> None:
        """Writes one region that makes values again."""
        outer: dict[Value, Value] = {}
        needed: set[Op] = set()
        goals = set(wanted)
        stack = list(wanted)
        while stack:
            value = stack.pop()
            if value.data is not None or value in outer:
                continue
            if value not in goals and value in self.there:
                outer[value] = self.there[value]
                continue
            op = self.maker.get(value)
            if op is None or (value in self.chain.fixed and value.partial is None):
                outer[value] = value
            elif op not in needed:
                needed.add(op)
                stack += op.inputs
        if any(v.partial is not None for v in outer.values()):
            self.there.update({v: v for v in wanted})  # An owed sum does not enter a region.
            return
        ops = [op for op in self.chain.program.ops[: self.chain.turn] if op in needed]
        again = region(ops, outer, wanted, self.cotangent, reader)
        self.ops.append(again)
        self.made.add(again)
        self.there.update(zip(wanted, again.outputs, strict=True))


def region(
    ops: Sequence[Op],
    outer: Mapping[Value, Value],
    wanted: Sequence[Value],
    cotangent: Value | None,
    reader: Op,
) -> Op:
    """A region that runs ops once more.

    Args:
      ops: the ops to run again.
      outer: from each value that they read and do not make to its present copy.
      wanted: the values to return copies of.
      cotangent: a value that it waits for besides.
      reader: the op that it runs for.
    """
    operands = dict.fromkeys(outer.values())
    if cotangent is not None:
        operands.setdefault(cotangent)
    params = {v: copied(v) for v in operands}
    inside = {v: params[there] for v, there in outer.items()}
    body = [clone(op, inside) for op in ops]
    inner = Program(tuple(params.values()), tuple(inside[v] for v in wanted), body)
    return Op(
        "checkpoint",
        None,
        tuple(operands),
        tuple(copied(v) for v in wanted),
        {"prevent_cse": True, "differentiated": True, "policy": None},
        (inner,),
        (),
        reader.source_info,
        reader.prefix,
    )


def copied(value: Value) -> Value:
    """Another value of the same kind."""
    copy = value.like(partial=value.partial)
    copy.path, copy.whole = "", value.whole
    return copy


def clone(op: Op, inside: dict[Value, Value]) -> Op:
    """The op on other values, with regions of its own; says which value became which."""
    inputs = [inside.get(v, v) for v in op.inputs]
    outputs = [copied(v) for v in op.outputs]
    inside.update(zip(op.outputs, outputs, strict=True))
    regions = tuple(_clone_program(region) for region in op.regions)
    return op.on(inputs, outputs, None, regions)


def _clone_program(program: Program) -> Program:
    inside = {v: copied(v) for v in program.inputs}
    ops = [clone(op, inside) for op in program.ops]
    return Program(
        tuple(inside[v] for v in program.inputs),
        tuple(inside.get(v, v) for v in program.outputs),
        ops,
        program.constants,
    )


def _pruned(program: Program, made: set[Op]) -> Program:
    """Without the results of regions that nobody reads, and what led to them."""
    read = set(program.outputs)
    ops: list[Op] = []
    for op in reversed(program.ops):
        if op in made:
            (body,) = op.regions
            kept = [i for i, v in enumerate(op.outputs) if v in read]
            if not kept:
                continue
            body.outputs = tuple(body.outputs[i] for i in kept)
            op.outputs = tuple(op.outputs[i] for i in kept)
            body.drop_dead()
            inner = {v for o in body.ops for v in o.inputs} | set(body.outputs)
            last = len(op.inputs) - 1  # the cotangent, which is there to be waited for
            stays = [i for i, v in enumerate(body.inputs) if v in inner or i == last]
            body.inputs = tuple(body.inputs[i] for i in stays)
            op.inputs = tuple(op.inputs[i] for i in stays)
        read.update(op.inputs)
        ops.append(op)
    ops.reverse()
    return _with(program, ops)
