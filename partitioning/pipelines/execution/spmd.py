"""Runs a pipeline's table in one program of all devices: a loop over steps, a switch on the cell,
and messages along the axis outside of the switch.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from ...ir.execute import Coordinates, evaluate
from ...ir.program import Op, Value
from ..edges import Task
from ..stages.cells import CellProgram, StagedStep
from ..stages.microbatches import MICROBATCH
from ..stages.spread import Spread
from ..table import PipelineTable
from .flat import Flat, FlatLayout, flattened, largest, shaped, zeros
from .interpret import COMBINE, joined, prepare, run_cell
from .routes import EVERY, Pool, cell_numbers, devices_of, routed
from .tail import SHARED, divided, needed


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
      sums: the same of what is summed up and collected over micro-batches.
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
        spread: Spread | None = None,
    ):
        self.step, self.table, self.axis = step, table, axis
        self.mesh = dict(mesh)
        self.routes = routed(step, table)
        self._device = devices_of(table)
        self.tail = divided(step, self._device, table.devices, state, spread)
        self.owned = [FlatLayout.of(v for v, _ in pairs) for pairs in self.tail.state]
        self.sizes = largest(self.owned)
        held = {v for packing in self.owned for v in packing.values}
        self.shared = [i for i, v in enumerate(step.program.inputs) if v not in held]
        self.returned = self.tail.shared
        self.after = {step.program.inputs[i]: o for i, o in state}
        self.state = tuple(self.after)
        self.kept = {value: o for value, o in self.after.items() if value in held}
        # Two of them may read one value: each has a place of its own.
        self._term = {op: op.inputs[0].like() for op in step.dependence.totals}
        self._totals = [self._sums_of(place) for place in range(table.devices)]
        self.sums = largest(self._totals)
        self._numbers = cell_numbers(table)

    def _sums_of(self, place: int) -> FlatLayout:
        """The results of `accumulate` and `collect` on a device; one copy a micro-batch of the
        rows that are collected.
        """
        totals = self.step.dependence.totals
        # Those of all devices have the same place on each.
        own = [op for who in (SHARED, place) for op in totals if self._owner(op) == who]
        many = {self._term[op]: self.table.microbatches for op in own if op.name == "collect"}
        return FlatLayout.of([self._term[op] for op in own], many)

    def _owner(self, op: Op) -> int:
        return self.tail.owners[op.outputs[0]]

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
        known = dict(zip((self.step.program.inputs[i] for i in self.shared), shared, strict=True))
        known.update(prepare(self.step, known, self.table.microbatches, self.mesh))
        sums = self._run_cells(place, flat, known)
        return self._run_tail(place, flat, known, sums)

    # The loop over the table.

    def _run_cells(self, place: Any, flat: Flat, known: Mapping[Value, Any]) -> Flat:
        routes = self.routes
        numbers, kinds, rows = self._numbers
        pools = {pool: zeros(sizes, (routes.slots[pool],)) for pool, sizes in routes.sizes.items()}
        sums = self._start(place)
        branches = [self._idle] + [
            functools.partial(self._cell, task, flat, known) for task in numbers
        ]

        def turn(carry: Any, row: Any) -> tuple[Any, None]:
            pools, sums = carry
            kinds, microbatches, reads, writes = row
            kind, microbatch = kinds[place], microbatches[place]
            made, sums = lax.switch(kind, branches, pools, sums, microbatch, reads[place])
            # Pools do not pass through the switch, which would copy them.
            for pool, parcel in made.items():
                if pool[1]:
                    pairs = self._pairs(pool)
                    parcel = {n: lax.ppermute(x, self.axis, pairs) for n, x in parcel.items()}
                number = writes[pool][place]
                if pool[1]:
                    parcel = _kept(pools[pool], parcel, number)
                pools = {**pools, pool: _written(pools[pool], parcel, number)}
            return (pools, sums), None

        table_rows = (kinds, rows, routes.read_slots, dict(routes.write_slots))
        (_, sums), _ = lax.scan(turn, (pools, sums), jax.tree.map(jnp.asarray, table_rows))
        return sums

    def _pairs(self, pool: Pool) -> list[tuple[int, int]]:
        """The pairs of devices between which messages of a pool go."""
        made = [p for one in self.routes.parcels.values() for p in one if p.pool == pool]
        size = self.table.devices
        return sorted({((p.device - pool[1]) % size, p.device) for p in made})

    def _nothing(self, pools: Mapping[Pool, Flat]) -> dict[Pool, Flat]:
        """The parcels of a cell that makes none: what stays is the first slot as it is, which is
        written where it was.
        """
        return {
            pool: zeros(sizes) if pool[1] else {n: x[0] for n, x in pools[pool].items()}
            for pool, sizes in self.routes.sizes.items()
        }

    def _idle(
        self, pools: Any, sums: Flat, microbatch: Any, reads: Any
    ) -> tuple[dict[Pool, Flat], Flat]:
        return self._nothing(pools), sums

    def _cell(
        self,
        task: Task,
        flat: Flat,
        known: Mapping[Value, Any],
        pools: Mapping[Pool, Flat],
        sums: Flat,
        microbatch: Any,
        reads: Any,
    ) -> tuple[dict[Pool, Flat], Flat]:
        """Runs a cell; returns its parcels, and sums with what it adds."""
        cell = self.step.cells[task]
        here = self._device[task[0]]
        have: dict[Value, Any] = {}
        wanted = set(cell.read)
        for i, parcel in enumerate(self.routes.reads[task]):
            slot = {n: x[reads[i]] for n, x in pools[parcel.pool].items()}
            if here == EVERY and parcel.device != EVERY:
                # All devices run this cell in one step: one of them sends what it has.
                is_there = lax.axis_index(self.axis) == parcel.device
                slot = {n: _sent(x, is_there, self.axis) for n, x in slot.items()}
            for value in parcel.layout.values:
                if value in wanted:
                    have[value] = parcel.layout.read(slot, value)
        for value in cell.given:
            alone = here != EVERY and value in self.owned[here].place
            have[value] = self.owned[here].read(flat, value) if alone else known[value]
        made = run_cell(cell, have, microbatch, self.table.microbatches, self.mesh)
        parcels = self._nothing(pools)
        for parcel in self.routes.parcels[task]:
            parcels[parcel.pool] = parcel.layout.pack(made, self.routes.sizes[parcel.pool])
        return parcels, self._added(cell, here, sums, made, microbatch)

    # Sums over micro-batches.

    def _start(self, place: Any) -> Flat:
        """The first values of sums, on this device."""
        sizes = self.sums
        starts = []
        for packing in self._totals:
            start = {name: np.zeros(size, name) for name, size in sizes.items()}
            for op in self.step.dependence.totals:
                value = self._term[op]
                if value in packing.place and op.name == "accumulate":
                    name, first = packing.place[value]
                    start[name][first : first + value.size] = _neutral(op, name)
            starts.append(start)
        return {
            name: jnp.asarray(np.stack([start[name] for start in starts]))[place]
            if any(start[name].any() for start in starts)
            else jnp.zeros(size, name)
            for name, size in sizes.items()
        }

    def _added(
        self, cell: CellProgram, place: int, sums: Flat, made: Mapping[Value, Any], microbatch: Any
    ) -> Flat:
        """Sums with what a cell adds to them."""
        sums, packing = dict(sums), self._totals[place]
        for op in self.step.dependence.totals:
            value = op.inputs[0]
            if value not in cell.added:
                continue
            name, first = packing.place[self._term[op]]
            more = flattened(value, made[value])
            if op.name == "collect":
                at = first + microbatch * more.size
                sums[name] = lax.dynamic_update_slice_in_dim(sums[name], more, at, 0)
                continue
            have = lax.slice_in_dim(sums[name], first, first + more.size)
            both = COMBINE[op.params["monoid"]](have, more).astype(have.dtype)
            sums[name] = lax.dynamic_update_slice_in_dim(sums[name], both, first, 0)
        return sums

    def _total(self, op: Op, place: int, sums: Flat) -> Any:
        """The result of an `accumulate` or `collect` on its device."""
        value, packing = self._term[op], self._totals[place]
        if op.name != "collect":
            return packing.read(sums, value)
        name, first = packing.place[value]
        count = self.table.microbatches
        size = FlatLayout.of([value]).sizes[name]
        rows = jnp.reshape(sums[name][first : first + count * size], (count, size))
        return joined(op, jax.vmap(functools.partial(shaped, value))(rows))

    # Behind the last micro-batch.

    def _run_tail(
        self, place: Any, flat: Flat, known: Mapping[Value, Any], sums: Flat
    ) -> tuple[Flat, list[Any]]:
        tail, step = self.tail, self.step
        shared: dict[Value, Any] = dict(known)
        totals = {op.outputs[0]: op for op in step.dependence.totals}
        everywhere = [value for value in totals if tail.owners[value] == SHARED]
        shared.update((value, self._total(totals[value], 0, sums)) for value in everywhere)

        def exchange(values: Sequence[Value]) -> None:
            """Computes values that all devices exchange parts of, outside of any branch."""
            found = self._evaluate_tail(needed(step.tail, values, shared), shared)
            shared.update(zip(values, found, strict=True))

        def compute(here: int, wanted: Sequence[Value]) -> list[Any]:
            """Values of the tail on a device, from what it has and what is shared."""
            own = {v for v, place in tail.owners.items() if place == here and v in totals}
            inputs = {*self.owned[here].values, *own, *shared}
            program = needed(step.tail, wanted, inputs)
            have = dict(shared)
            for value in program.inputs:
                if value in own:
                    have[value] = self._total(totals[value], here, sums)
                elif value not in have:
                    have[value] = self.owned[here].read(flat, value)
            return self._evaluate_tail(program, have)

        devices = range(self.table.devices)
        exchange(tail.exchanged[0])
        for sent, exchanged in zip(tail.rounds, tail.exchanged[1:], strict=True):

            def round_of(here: int, sent: tuple[Value, ...] = sent) -> list[Any]:
                mine = [v for v in sent if tail.owners[v] == here]
                found = dict(zip(mine, compute(here, mine), strict=True))
                return [
                    _summable(found[v]) if v in found else jnp.zeros(v.shape, _summable_dtype(v))
                    for v in sent
                ]

            parts = lax.switch(place, [functools.partial(round_of, here) for here in devices])
            for value, part in zip(sent, lax.psum(parts, self.axis), strict=True):
                shared[value] = part.astype(value.dtype)
            exchange(exchanged)

        def updated(here: int) -> Flat:
            pairs = tail.state[here]
            results = compute(here, [after for _, after in pairs])
            found = {v: x for (v, _), x in zip(pairs, results, strict=True)}
            return self.owned[here].pack(found, self.sizes)

        after = lax.switch(place, [functools.partial(updated, here) for here in devices])
        outputs = [step.program.outputs[i] for i in self.returned]
        program = needed(step.tail, outputs, shared)
        return after, self._evaluate_tail(program, shared)

    def _evaluate_tail(self, program: Any, have: Mapping[Value, Any]) -> list[Any]:
        here = Coordinates(self.mesh, {axis: lax.axis_index(axis) for axis in self.mesh})
        return evaluate(program, [have[v] for v in program.inputs], here)


def _sent(array: Any, is_there: Any, axis: str) -> Any:
    """An array of one device on all devices of an axis."""
    part = _summable(jnp.where(is_there, array, jnp.zeros_like(array)))
    return lax.psum(part, axis).astype(array.dtype)


def _kept(pool: Flat, slot: Flat, number: Any) -> Flat:
    """What is written to the slot of a number; what is there where the number is negative."""
    return {name: jnp.where(number < 0, x[0], slot[name]) for name, x in pool.items()}


def _written(pool: Flat, slot: Flat, number: Any) -> Flat:
    """A pool with a slot written, which is the first one where the number is negative."""
    at = jnp.maximum(number, 0)
    return {n: lax.dynamic_update_index_in_dim(x, slot[n], at, 0) for n, x in pool.items()}


def _neutral(op: Op, name: str) -> Any:
    """The identity of a reduction, which leaves every value as it is."""
    monoid = op.params["monoid"]
    if monoid in ("sum", "or"):
        return 0
    if monoid == "and":
        return 1
    info: Any = jnp.finfo(name) if jnp.issubdtype(name, jnp.floating) else jnp.iinfo(name)
    if jnp.issubdtype(name, jnp.floating):
        return -np.inf if monoid == "max" else np.inf
    return info.min if monoid == "max" else info.max


def _summable(array: Any) -> Any:
    return array.astype(jnp.int32) if array.dtype == bool else array


def _summable_dtype(value: Value) -> Any:
    return jnp.int32 if value.dtype == bool else value.dtype
