"""A pipelined step in one program of all devices: its phases, and the loops over such."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import jax.numpy as jnp
from jax import lax

from ...ir.program import Value
from ..stages.cells import StagedLoop, StagedPart, StagedPhase, StagedStep
from ..stages.dependence import in_microbatches
from ..stages.microbatches import MICROBATCH
from ..stages.spread import SpreadWork
from ..table import PipelineTable
from .arrays import StageArrays
from .flat import Flat, FlatLayout, largest
from .phase import PhaseProgram
from .routes import devices_of
from .tail import SHARED, Owners

#: (a value, the device that keeps it or SHARED, its name where that one holds it).
Wanted = tuple[Value, int, Value]


class PipelineProgram:
    """The program of one device of a pipelined step.

    Args:
      step: the cells.
      table: the schedule.
      axis: the mesh axis of the stages.
      mesh: sizes of the axes of the mesh.
      state: positions of inputs that come out again updated, and of those outputs.
      spread: the work of all devices of the axis at once.

    Attributes:
      owned: for each device of the axis the inputs that it alone holds.
      sizes: elements of the flat arrays, by dtype, that hold the inputs of any device.
      shared: positions of the inputs that every device holds.
      returned: positions of the outputs that every device returns.
      state: the inputs that come out again updated.
      after: for each of them the position of its update among the outputs.
      kept: those of `after` that one device holds.
    """

    def __init__(
        self,
        step: StagedStep,
        table: PipelineTable,
        axis: str,
        mesh: Mapping[str, int],
        state: Sequence[tuple[int, int]],
        spread: SpreadWork | None = None,
    ):
        self.step, self.table, self.axis, self.mesh = step, table, axis, dict(mesh)
        self.spread = spread
        inputs, outputs = step.program.inputs, step.program.outputs
        self.owners = Owners(step, devices_of(table))
        looped = {v for part in step.parts if isinstance(part, StagedLoop) for v in part.op.inputs}
        given = dict.fromkeys(inputs, SHARED)
        for i, _ in state:
            value = inputs[i]
            if not in_microbatches(value):
                of = self.owners.of_handed if value in looped else self.owners.of
                given[value] = of(value)
        self.owned = [
            FlatLayout.of(inputs[i] for i, _ in state if given[inputs[i]] == here)
            for here in range(table.devices)
        ]
        self.sizes = largest(self.owned)
        self.shared = [i for i, v in enumerate(inputs) if given[v] == SHARED]
        self.after = {inputs[i]: o for i, o in state}
        self.state = tuple(self.after)
        self.kept = {v: o for v, o in self.after.items() if given[v] != SHARED}
        own = set(self.kept.values())
        self.returned = tuple(i for i in range(len(outputs)) if i not in own)
        wanted: list[Wanted] = [(outputs[o], given[v], v) for v, o in self.kept.items()]
        wanted += [(outputs[i], SHARED, outputs[i]) for i in self.returned]
        self._parts = _Parts(self, step.parts, given, wanted)

    @property
    def phases(self) -> tuple[tuple[PhaseProgram, int], ...]:
        """The programs of all phases, each with how often it runs in a step."""
        return tuple(self._parts.counted(1))

    def whole_shape(self, value: Value) -> tuple[int, ...]:
        """The shape of an input on the whole mesh, with the rows of all micro-batches."""
        sizes = {**self.mesh, MICROBATCH: self.table.microbatches}
        parts = [math.prod(sizes[a] for a in axes) for axes in value.layout or ((),) * value.ndim]
        return tuple(n * count for n, count in zip(value.shape, parts, strict=True))

    def __call__(self, flat: Flat, shared: Sequence[Any]) -> tuple[Flat, list[Any]]:
        """Runs the step on one device, within `shard_map`.

        Args:
          flat: the inputs that this device alone holds, packed.
          shared: the others.

        Returns:
          The same of the outputs.
        """
        place = lax.axis_index(self.axis)
        known = zip((self.step.program.inputs[i] for i in self.shared), shared, strict=True)
        return self._parts(StageArrays(place, dict(known), [(self.owned, flat)]))


class _Parts:
    """The programs of the parts of a step, or of a loop's body.

    Args:
      program: of the step.
      parts: in order; the last one is a phase, and makes the outputs.
      given: for each input the device that has it, or SHARED.
      wanted: of the outputs.
    """

    def __init__(
        self,
        program: PipelineProgram,
        parts: Sequence[StagedPart],
        given: Mapping[Value, int],
        wanted: Sequence[Wanted],
    ):
        known = dict(given)
        self._programs: list[PhaseProgram | _LoopProgram] = []
        for number, part in enumerate(parts):
            if isinstance(part, StagedLoop):
                loop = _LoopProgram(program, part, known)
                known.update(loop.placed)
                self._programs.append(loop)
                continue
            found = wanted if number == len(parts) - 1 else _handed(part, program.owners)
            self._programs.append(
                PhaseProgram(
                    part,
                    program.table,
                    program.axis,
                    program.mesh,
                    program.owners,
                    known,
                    found,
                    program.spread,
                )
            )
            known.update((name, place) for _, place, name in found)

    def counted(self, times: int) -> Iterator[tuple[PhaseProgram, int]]:
        """Every phase, with how often it runs."""
        for one in self._programs:
            if isinstance(one, PhaseProgram):
                yield one, times
            else:
                yield from one.counted(times)

    def __call__(self, held: StageArrays) -> tuple[Flat, list[Any]]:
        """Runs the parts; returns what the last one does."""
        for one in self._programs[:-1]:
            if isinstance(one, PhaseProgram):
                flat, results = one(held)
                held = held.with_store(one.layouts, flat)
                held = held.with_shared(dict(zip(one.shared, results, strict=True)))
            else:
                held = one(held)
        last = self._programs[-1]
        assert isinstance(last, PhaseProgram)
        return last(held)


def _handed(phase: StagedPhase, owners: Owners) -> list[Wanted]:
    """The values that a phase hands on to others."""
    return [(v, owners.of_handed(v), v) for v in dict.fromkeys(phase.program.outputs)]


class _LoopProgram:
    """The program of a loop over steps.

    Args:
      program: of the step.
      loop: the loop.
      given: the devices that have what was made before, or SHARED.
    """

    def __init__(self, program: PipelineProgram, loop: StagedLoop, given: Mapping[Value, int]):
        self._op, self._program, body = loop.op, program, loop.body
        consts, carries = self._op.params["num_consts"], self._op.params["num_carry"]
        of = program.owners.of_handed
        self._consts = dict(zip(body.inputs[:consts], self._op.inputs[:consts], strict=True))
        self._carries = body.inputs[consts : consts + carries]
        self._xs = body.inputs[consts + carries :]
        outputs = self._op.outputs
        inner = {b: given.get(v, SHARED) for b, v in self._consts.items()}
        inner.update((b, of(b)) for b in self._carries)
        inner.update(dict.fromkeys(self._xs, SHARED))
        devices = range(program.table.devices)
        self._layouts = [
            FlatLayout.of(b for b in self._carries if inner[b] == here) for here in devices
        ]
        self._sizes = largest(self._layouts)
        updated = zip(body.outputs[:carries], self._carries, strict=True)
        wanted: list[Wanted] = [(after, inner[b], b) for after, b in updated]
        wanted += [(y, SHARED, y) for y in body.outputs[carries:]]
        self._body = _Parts(program, loop.parts, inner, wanted)
        behind = dict(zip(self._carries, outputs[:carries], strict=True))
        self._behind = [FlatLayout.of(behind[b] for b in one.values) for one in self._layouts]
        self._shared = [b for b in self._carries if inner[b] == SHARED]
        self._returned = [behind[b] for b in self._shared]
        #: For each result the device that has it, or SHARED.
        self.placed = {v: inner[b] for b, v in behind.items()}
        self.placed.update(dict.fromkeys(outputs[carries:], SHARED))

    def counted(self, times: int) -> Iterator[tuple[PhaseProgram, int]]:
        """Every phase, with how often it runs."""
        return self._body.counted(times * self._op.trips)

    def __call__(self, held: StageArrays) -> StageArrays:
        """Runs the loop; returns what the device has behind it."""
        op, program = self._op, self._program
        consts, carries = op.params["num_consts"], op.params["num_carry"]
        devices, axis = program.table.devices, program.axis
        first = dict(zip(self._carries, op.inputs[consts : consts + carries], strict=True))
        flat = held.pack(self._layouts, self._sizes, first)
        shared = [_as(b, held.everywhere(first[b], devices, axis)) for b in self._shared]
        xs = [held.everywhere(v, devices, axis) for v in op.inputs[consts + carries :]]
        within = held.with_names(self._consts)

        def turn(carry: Any, xs: Any) -> tuple[Any, Any]:
            flat, shared = carry
            known = {
                **dict(zip(self._shared, shared, strict=True)),
                **dict(zip(self._xs, xs, strict=True)),
            }
            after, results = self._body(within.with_store(self._layouts, flat).with_shared(known))
            count = len(self._shared)
            shared = [_as(b, x) for b, x in zip(self._shared, results[:count], strict=True)]
            return (after, shared), results[count:]

        (flat, shared), stacked = lax.scan(
            turn, (flat, shared), xs, length=op.params["length"], reverse=op.params["reverse"]
        )
        held = held.with_store(self._behind, flat)
        held = held.with_shared(dict(zip(self._returned, shared, strict=True)))
        return held.with_shared(dict(zip(op.outputs[carries:], stacked, strict=True)))


def _as(value: Value, array: Any) -> Any:
    """An array of a value's dtype, and not of a Python number's."""
    if jnp.issubdtype(value.dtype, jnp.number) or value.dtype == bool:
        return jnp.asarray(array, value.dtype)
    return array
