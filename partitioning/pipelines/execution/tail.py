"""The tail of a phase behind its last micro-batch, divided over the devices of a pipeline.

Each device updates the state of its own segments. What several devices need, such as the norm of
all gradients, is exchanged between *rounds*, and then computed on every device.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence

from ...ir.program import Op, Program, Value
from ..stages.cells import StagedPhase, StagedStep
from ..stages.owners import Groups

#: The owner of what every device has.
SHARED = -1


@dataclasses.dataclass(frozen=True, eq=False)
class Tail:
    """The rounds of a tail.

    Attributes:
      owners: the device that has a value, or SHARED: of inputs, of totals, and of all results.
      rounds: in each, the values that their owners send to all devices.
      kept: for each device the outputs that it alone keeps.
      shared: the other outputs, which every device has.
    """

    owners: Mapping[Value, int]
    rounds: tuple[tuple[Value, ...], ...]
    kept: tuple[tuple[Value, ...], ...]
    shared: tuple[Value, ...]


class Owners:
    """Tells the device of each array that passes from step to step or from phase to phase.

    Args:
      step: the step.
      device: of each segment.
    """

    def __init__(self, step: StagedStep, device: Sequence[int]):
        self.device = device
        self._trained = step.dependence.trained
        readers: dict[Value, set[int]] = {}
        for phase in step.phases:
            for (segment, _), cell in phase.cells.items():
                for value in cell.given:
                    readers.setdefault(value, set()).add(segment)
        self._homes = Groups(step.dependence).segments(readers)

    def of(self, value: Value) -> int:
        """The device of the segments that compute with a value's group, or SHARED."""
        places = {self.device[segment] for segment in self._homes(value)}
        return places.pop() if len(places) == 1 else SHARED

    def of_handed(self, value: Value) -> int:
        """The device of a value that a phase hands on; rows of a batch lie on all."""
        return self.of(value) if value in self._trained else SHARED


def divided(
    phase: StagedPhase,
    owners: Owners,
    devices: int,
    given: Mapping[Value, int],
    wanted: Sequence[tuple[Value, int]],
) -> Tail:
    """Divides the tail of a phase.

    Args:
      phase: the phase.
      owners: of the step.
      devices: how many there are.
      given: for each input the device that has it, or SHARED.
      wanted: (output, the device that keeps it, or SHARED).
    """
    device, owner_of = owners.device, owners.of
    owned: dict[Value, int] = dict(given)
    owned.update(dict.fromkeys(phase.program.constants, SHARED))
    owned.update((op.outputs[0], SHARED) for op in phase.dependence.prepared)
    of = phase.segments.of
    made = {
        v: device[of[op]]
        for op in (*phase.dependence.forward, *phase.dependence.backward) for v in op.outputs
    }  # fmt: skip
    last = device[phase.count - 1]
    for op in phase.dependence.totals:
        owned[op.outputs[0]] = made.get(op.inputs[0], last)

    level: dict[Value, int] = {}  # the round after which a shared value is known; -1: before
    sent: dict[Value, int] = {}

    def send(values: Iterable[Value], reader: int) -> int:
        """The round in which the reader can compute with values; sends those it does not have."""
        now = 0 if reader != SHARED else -1
        for value in values:
            if value.data is not None:
                continue
            known = level.get(value, -1 if owned[value] == SHARED else 0)
            if owned[value] not in (SHARED, reader):
                known = sent.setdefault(value, known)
                now = max(now, known if reader == SHARED else known + 1)
            elif owned[value] == SHARED and reader != SHARED:
                now = max(now, known + 1)
            else:
                now = max(now, known)
        return now

    for op in phase.tail.ops:
        arrays = [v for v in (*op.inputs, *op.outputs) if v.data is None and v.ndim]
        places = {owner_of(v) for v in arrays} - {SHARED}
        read = [v for v in op.inputs if v.data is None]
        if not places and all(level.get(v, -1) < 0 or owned[v] != SHARED for v in read):
            # A further sum of what every device has is not sent once more.
            places = {owned[v] for v in read} - {SHARED}
        reader = places.pop() if len(places) == 1 else SHARED
        now = send(op.inputs, reader)
        for value in op.outputs:
            owned[value], level[value] = reader, now

    kept: list[list[Value]] = [[] for _ in range(devices)]
    for value, place in wanted:
        if value.data is None:
            send((value,), place)
        if place != SHARED:
            kept[place].append(value)
    shared = tuple(v for v, place in wanted if place == SHARED)
    count = 1 + max([*sent.values(), *level.values(), -1])
    rounds = tuple(tuple(v for v, at in sent.items() if at == k) for k in range(count))
    return Tail(owned, rounds, tuple(map(tuple, kept)), shared)


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
