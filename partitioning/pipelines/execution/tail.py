"""The tail of a step behind the last micro-batch, divided over the devices of a pipeline.

Each device updates the state of its own segments. What several devices need, such as the norm of
all gradients, is exchanged between *rounds*, and then computed on every device.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence

from ...ir.program import Op, Program, Value
from ..stages.cells import StagedStep
from ..stages.dependence import in_microbatches
from ..stages.owners import Groups
from ..stages.spread import Spread
from .routes import EVERY

#: The owner of what every device has, or its part of.
SHARED = EVERY


@dataclasses.dataclass(frozen=True, eq=False)
class Tail:
    """The rounds of a tail.

    Attributes:
      owners: the device that has a value, or SHARED: of inputs, of totals, and of all results.
      rounds: in each, the values that their owners send to all devices.
      exchanged: before the first round, and after each, the values that all devices then exchange
        parts of, within a program that all of them run.
      state: for each device the (input, output) pairs of the state that it owns.
      shared: outputs, other than those, that every device returns; by position.
    """

    owners: Mapping[Value, int]
    rounds: tuple[tuple[Value, ...], ...]
    exchanged: tuple[tuple[Value, ...], ...]
    state: tuple[tuple[tuple[Value, Value], ...], ...]
    shared: tuple[int, ...]


def divided(
    step: StagedStep,
    device: Sequence[int],
    devices: int,
    state: Sequence[tuple[int, int]],
    spread: Spread | None = None,
) -> Tail:
    """Divides the tail of a step.

    Args:
      step: the step.
      device: of each segment, or EVERY.
      devices: how many there are.
      state: positions of inputs that come out again updated, and of those outputs.
      spread: the work of all devices at once.
    """
    program = step.program
    groups = Groups(step.dependence)
    readers: dict[Value, set[int]] = {}
    for (segment, _), cell in step.cells.items():
        for value in cell.given:
            readers.setdefault(value, set()).add(segment)
    homes = groups.segments(program, readers)

    def owner_of(value: Value) -> int:
        places = {device[segment] for segment in homes(value)}
        return places.pop() if len(places) == 1 else SHARED

    owners: dict[Value, int] = {}
    updated = {program.inputs[i] for i, _ in state}
    for value in program.inputs:
        alone = value in updated and not in_microbatches(value)
        owners[value] = owner_of(value) if alone else SHARED
    owners.update(dict.fromkeys(program.constants, SHARED))
    owners.update((op.outputs[0], SHARED) for op in step.dependence.prepared)
    made = {v: device[segment] for op, segment in step.segments.of.items() for v in op.outputs}
    last = device[step.count - 1]
    for op in step.dependence.totals:
        owners[op.outputs[0]] = made.get(op.inputs[0], last)

    level: dict[Value, int] = {}  # the round after which a shared value is known; -1: before
    sent: dict[Value, int] = {}

    def send(values: Iterable[Value], reader: int) -> int:
        """The round in which the reader can compute with values; sends those it does not have."""
        now = 0 if reader != SHARED else -1
        for value in values:
            if value.data is not None:
                continue
            known = level.get(value, -1 if owners[value] == SHARED else 0)
            if owners[value] not in (SHARED, reader):
                known = sent.setdefault(value, known)
                now = max(now, known if reader == SHARED else known + 1)
            elif owners[value] == SHARED and reader != SHARED:
                now = max(now, known + 1)
            else:
                now = max(now, known)
        return now

    for op in step.tail.ops:
        arrays = [v for v in (*op.inputs, *op.outputs) if v.data is None and v.ndim]
        places = {owner_of(v) for v in arrays} - {SHARED}
        read = [v for v in op.inputs if v.data is None]
        if not places and all(level.get(v, -1) < 0 or owners[v] != SHARED for v in read):
            # A further sum of what every device has is not sent once more.
            places = {owners[v] for v in read} - {SHARED}
        alone = len(places) == 1 and (spread is None or op not in spread.ops)
        reader = places.pop() if alone else SHARED
        now = send(op.inputs, reader)
        for value in op.outputs:
            owners[value], level[value] = reader, now

    owned = {program.inputs[i]: (i, o) for i, o in state if owners[program.inputs[i]] != SHARED}
    pairs: list[list[tuple[Value, Value]]] = [[] for _ in range(devices)]
    kept: set[int] = set()
    for value, (_, o) in owned.items():
        after = program.outputs[o]
        if after.data is None:
            send((after,), owners[value])
        pairs[owners[value]].append((value, after))
        kept.add(o)
    shared = tuple(i for i in range(len(program.outputs)) if i not in kept)
    send([program.outputs[i] for i in shared], SHARED)
    count = 1 + max([*sent.values(), *level.values(), -1])
    rounds = tuple(tuple(v for v, at in sent.items() if at == k) for k in range(count))
    together = () if spread is None else spread.exchanges
    exchanged = tuple(
        tuple(v for op in step.tail.ops if op in together for v in op.outputs if level[v] == k)
        for k in range(-1, count)
    )
    return Tail(owners, rounds, exchanged, tuple(map(tuple, pairs)), shared)


def needed(tail: Program, values: Iterable[Value], known: Iterable[Value]) -> Program:
    """The part of a tail that computes values from known ones."""
    have, wanted = set(known), list(dict.fromkeys(values))
    missing = {v for v in wanted if v not in have}
    ops: list[Op] = []
    for op in reversed(tail.ops):
        if not missing.isdisjoint(op.outputs) and not have.issuperset(op.outputs):
            ops.append(op)
            missing.update(v for v in op.inputs if v not in have)
    ops.reverse()
    made = {v for op in ops for v in op.outputs}
    read = [v for op in ops for v in op.inputs] + wanted
    constants = set(tail.constants)
    inputs = [v for v in dict.fromkeys(read) if v.data is None and v not in made]
    return Program(
        tuple(v for v in inputs if v not in constants), tuple(wanted), ops,
        tuple(v for v in tail.constants if v in set(read)),
    )  # fmt: skip
