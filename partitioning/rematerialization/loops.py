"""Loops that were differentiated: what one stacks for the backward one is computed again instead.

A scan's backward pass is a scan over what the turns of the forward one stacked. An array that is
not stacked any more is made again in the backward body, from what the turn read: its carry, which
is stacked where it was not, its slices, and what else is kept.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

from ..ir.program import Op, Program, Value
from ..rules import traits_of
from ..simulator.costs import op_cost
from ..simulator.device import Device
from .cuts import runs_once
from .regions import copied, region


@dataclasses.dataclass
class Pair:
    """A loop and the loop of its backward pass.

    Attributes:
      forward, backward: the scans.
      stacked: positions among the results of the forward body of what only the backward scan reads,
        with its position among that one's operands.
    """

    forward: Op
    backward: Op
    stacked: dict[int, int]

    @property
    def body(self) -> Program:
        return self.forward.regions[0]

    @property
    def carry(self) -> int:
        return self.forward.params["num_carry"]

    def needs(self, dropped: Sequence[int]) -> tuple[list[Op], list[Value]]:
        """The ops that make dropped results again, and the values of the body that they read."""
        body = self.body
        kept = {v for i, v in enumerate(body.outputs) if i >= self.carry and i not in dropped}
        goals = dict.fromkeys(body.outputs[i] for i in dropped)  # in order: so is what is read
        maker = {v: op for op in body.ops for v in op.outputs if not runs_once(op)}
        ops: set[Op] = set()
        read: dict[Value, None] = {}
        stack = list(goals)
        while stack:
            value = stack.pop()
            if value.data is not None:
                continue
            op = maker.get(value)
            if op is None or (value in kept and value not in goals):
                read[value] = None
            elif op not in ops:
                ops.add(op)
                stack += op.inputs
        return [op for op in body.ops if op in ops], list(read)

    def fresh(self, dropped: Sequence[int], read: Sequence[Value]) -> list[Value]:
        """Values of the body that recomputation reads and that are not yet stacked."""
        body, consts = self.body, self.forward.params["num_consts"]
        there = {v for i, v in enumerate(body.outputs) if i >= self.carry and i not in dropped}
        there.update(body.inputs[:consts], body.inputs[consts + self.carry :], body.constants)
        return [v for v in read if v not in there]

    def order(self, device: Device) -> list[int]:
        """Droppable results, those first that free most bytes for their time."""
        body = self.body
        length = self.forward.params["length"]
        left = [i for i in self.stacked if body.outputs[i].nbytes]
        dropped: list[int] = []
        freed = seconds = 0.0
        while left:
            best: tuple[float, int, float, float] | None = None
            for i in left:
                tried = [*dropped, i]
                ops, read = self.needs(tried)
                added = sum(v.nbytes for v in self.fresh(tried, read))
                nbytes = length * (sum(body.outputs[k].nbytes for k in tried) - added)
                again = length * sum(_seconds(op, device) for op in ops)
                if nbytes <= freed or any(v.partial is not None for v in read):
                    continue
                worth = (nbytes - freed) / max(again - seconds, 1e-9)
                if best is None or worth > best[0]:
                    best = worth, i, nbytes, again
            if best is None:
                break
            _, i, freed, seconds = best
            dropped.append(i)
            left.remove(i)
        return dropped


def _seconds(op: Op, device: Device) -> float:
    """About how long one run of an op takes."""
    if op.regions:
        return op.trips * sum(
            _seconds(inner, device) for region in op.regions for inner in region.ops
        )
    cost = op_cost(op)
    moved = (cost.bytes_read + cost.bytes_written) / device.bandwidth(1e9)
    if traits_of(op.name).kernel in ("dot", "convolution"):
        return max(moved, cost.flops / device.matmul_rate(str(op.inputs[0].dtype), cost.flops))
    # What is elementwise is computed in the kernels of others.
    return 0.1 * moved


def pairs(program: Program) -> Iterator[Pair]:
    """The loops of one straight line of ops that also holds their backward loops."""
    readers: dict[Value, list[Op | None]] = {}
    for op in program.ops:
        for value in op.inputs:
            readers.setdefault(value, []).append(op)
    for value in program.outputs:
        readers.setdefault(value, []).append(None)
    taken: set[Op] = set()
    for forward in program.ops:
        if forward.name != "scan" or forward.backward or forward.params["length"] < 2:
            continue
        found: dict[Op, dict[int, int]] = {}
        for i in range(forward.params["num_carry"], len(forward.outputs)):
            read = readers.get(forward.outputs[i], [])
            if len(read) != 1 or read[0] is None or read[0].name != "scan":
                continue
            (backward,) = read
            assert backward is not None
            at = backward.inputs.index(forward.outputs[i])
            first = backward.params["num_consts"] + backward.params["num_carry"]
            same = _turns(backward) == _turns(forward)
            if backward.backward and at >= first and same and backward not in taken:
                found.setdefault(backward, {})[i] = at
        if found:
            backward = max(found, key=lambda op: len(found[op]))
            taken.add(backward)
            yield Pair(forward, backward, found[backward])


def _turns(op: Op) -> tuple[Any, ...]:
    """The number of turns of a loop on one device, and the axes that share them."""
    return op.params["length"], op.params.get("turns", ())


def unstacked(program: Program, device: Device, share: float) -> Program:
    """The program without a share of the droppable results in its loops' stacks.

    Args:
      program: stays as it is.
      device: gives the times that order the results to drop.
      share: the share of the bytes to drop, 0 to 1.
    """
    ops = list(program.ops)
    for i, op in enumerate(ops):
        regions = tuple(unstacked(r, device, share) for r in op.regions)
        if any(new is not old for new, old in zip(regions, op.regions, strict=True)):
            ops[i] = op.on(op.inputs, op.outputs, None, regions)
    line = Program(program.inputs, program.outputs, ops, program.constants, program.signature)
    changed = {}
    for pair in pairs(line):
        order = pair.order(device)
        total = sum(pair.body.outputs[i].nbytes for i in order)
        dropped: list[int] = []
        for i in order:
            done = sum(pair.body.outputs[k].nbytes for k in dropped)
            if done < share * total:
                dropped.append(i)
        if dropped:
            changed[pair.forward], changed[pair.backward] = _without(pair, dropped)
    line.ops = [changed.get(op, op) for op in ops]
    same = all(new is old for new, old in zip(line.ops, program.ops, strict=True))
    return program if same else line


def _without(pair: Pair, dropped: Sequence[int]) -> tuple[Op, Op]:
    """The two loops, where the forward one does not stack some results."""
    forward, backward, body, carry = pair.forward, pair.backward, pair.body, pair.carry
    consts, length = forward.params["num_consts"], forward.params["length"]
    ops, read = pair.needs(dropped)
    fresh = pair.fresh(dropped, read)
    results = [i for i in range(len(body.outputs)) if i not in dropped]
    stacks = [_stacked(v, length, forward.params.get("turns", ())) for v in fresh]
    inner = Program(
        body.inputs,
        (*(body.outputs[i] for i in results), *fresh),
        body.ops,
        body.constants,
    )
    inner = Program(inner.inputs, inner.outputs, list(inner.ops), inner.constants)
    inner.drop_dead()
    outputs = (*(forward.outputs[i] for i in results), *stacks)
    first = forward.on(forward.inputs, outputs, None, (inner,))

    # Where the backward scan finds what is read: outside, and as a slice or whole.
    whole = dict(zip(body.inputs[:consts], forward.inputs[:consts], strict=True))
    sliced = dict(zip(body.inputs[consts + carry :], forward.inputs[consts + carry :], strict=True))
    for i in results:
        if i >= carry:
            sliced.setdefault(body.outputs[i], forward.outputs[i])
    sliced.update(zip(fresh, stacks, strict=True))
    (target,) = backward.regions
    theirs, begin = backward.params["num_consts"], backward.params["num_carry"]
    begin += theirs
    gone = {pair.stacked[i] for i in dropped}
    old = [i for i in range(len(target.inputs)) if i not in gone]
    at_hand = {backward.inputs[i]: target.inputs[i] for i in old if i >= begin}
    held = {backward.inputs[i]: target.inputs[i] for i in old if i < theirs}
    more_consts: dict[Value, Value] = {}
    more_slices: dict[Value, Value] = {}
    outer: dict[Value, Value] = {}
    for value in read:
        if value in sliced:
            source = sliced[value]
            known = at_hand.get(source) or more_slices.get(source)
            outer[value] = known or more_slices.setdefault(source, copied(value))
        elif value in whole:
            source = whole[value]
            known = held.get(source) or more_consts.get(source)
            outer[value] = known or more_consts.setdefault(source, copied(value))
        else:  # a constant of the body
            outer[value] = value
    cotangent = next((v for v in target.inputs[theirs:begin] if v.shape), None)
    goals = [body.outputs[i] for i in dropped]
    params = [target.inputs[pair.stacked[i]] for i in dropped]
    again = region(ops, dict(outer), goals, cotangent, backward)
    renamed = dict(zip(params, again.outputs, strict=True))
    place = next(
        (k for k, op in enumerate(target.ops) if any(v in renamed for v in op.inputs)),
        len(target.ops),
    )
    rest = [_reading(op, renamed) for op in target.ops[place:]]
    new = Program(
        (
            *(target.inputs[i] for i in old if i < theirs),
            *more_consts.values(),
            *(target.inputs[i] for i in old if i >= theirs),
            *more_slices.values(),
        ),
        tuple(renamed.get(v, v) for v in target.outputs),
        [*target.ops[:place], again, *rest],
        (*target.constants, *body.constants),
    )
    operands = (
        *(backward.inputs[i] for i in old if i < theirs),
        *more_consts,
        *(backward.inputs[i] for i in old if i >= theirs),
        *more_slices,
    )
    counted = {**backward.params, "num_consts": theirs + len(more_consts)}
    return first, backward.on(operands, backward.outputs, counted, (new,))


def _stacked(value: Value, length: int, turns: tuple[str, ...]) -> Value:
    layout = None if value.layout is None else (turns, *value.layout)
    return value.like((length, *value.shape), layout)


def _reading(op: Op, renamed: dict[Value, Value]) -> Op:
    if not any(v in renamed for v in op.inputs):
        return op
    return op.on([renamed.get(v, v) for v in op.inputs], op.outputs, None, op.regions)
