"""Runs a phase in one program of all devices: a loop over the steps of a table, a switch on the
cell, messages along the axis outside of the switch, and what follows the last micro-batch.
"""

from __future__ import annotations

import functools
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from ...ir.execute import Coordinates, evaluate
from ...ir.program import Op, Value
from ..edges import Task
from ..stages.cells import CellProgram, StagedPhase
from ..stages.spread import SpreadWork
from ..table import PipelineTable
from .arrays import StageArrays, summable
from .flat import Flat, FlatLayout, flattened, largest, shaped, zeros
from .interpret import COMBINE, joined, prepare, run_cell
from .routes import EVERY, Pool, cell_numbers, routed
from .tail import SHARED, Owners, divided, needed


class PhaseProgram:
    """The program of one device of a phase.

    Args:
      phase: the cells.
      table: the schedule.
      axis: the mesh axis of the stages.
      mesh: sizes of the axes of the mesh.
      owners: of the step.
      given: for each input the device that has it, or SHARED.
      wanted: (output, the device that keeps it or SHARED, its name where that one holds it).
      spread: the work of all devices of the axis at once.

    Attributes:
      phase, table: the same.
      routes: buffers of the table.
      sums: elements of the flat arrays, by dtype, of what is summed up and collected.
      tail: what follows the last micro-batch, by device.
      layouts: for each device the names of what it keeps.
      sizes: elements of the flat arrays that hold what any device keeps.
    """

    def __init__(
        self,
        phase: StagedPhase,
        table: PipelineTable,
        axis: str,
        mesh: Mapping[str, int],
        owners: Owners,
        given: Mapping[Value, int],
        wanted: Sequence[tuple[Value, int, Value]],
        spread: SpreadWork | None = None,
    ):
        self.phase, self.table, self.axis, self.mesh = phase, table, axis, dict(mesh)
        self.routes = routed(phase, table)
        self._device = owners.device
        pairs = [(value, place) for value, place, _ in wanted]
        self.tail = divided(phase, owners, table.devices, given, pairs, spread)
        devices = range(table.devices)
        self.layouts = [
            FlatLayout.of(name for _, place, name in wanted if place == here) for here in devices
        ]
        self.sizes = largest(self.layouts)
        self.shared = tuple(name for _, place, name in wanted if place == SHARED)
        # Two of them may read one value: each has a place of its own.
        self._term = {op: op.inputs[0].like() for op in phase.dependence.totals}
        self._totals = [self._sums_of(place) for place in devices]
        self.sums = largest(self._totals)
        self._numbers = cell_numbers(table)

    def _sums_of(self, place: int) -> FlatLayout:
        """The results of `accumulate` and `collect` on a device; one copy a micro-batch of the
        rows that are collected.
        """
        totals = self.phase.dependence.totals
        # Those of all devices have the same place on each.
        own = [op for who in (SHARED, place) for op in totals if self._owner(op) == who]
        many = {self._term[op]: self.table.microbatches for op in own if op.name == "collect"}
        return FlatLayout.of([self._term[op] for op in own], many)

    def _owner(self, op: Op) -> int:
        return self.tail.owners[op.outputs[0]]

    def __call__(self, held: StageArrays) -> tuple[Flat, list[Any]]:
        """Runs the phase on one device, within `shard_map`.

        Args:
          held: what the device has.

        Returns:
          What it keeps, packed, and what all devices have, in the order of `wanted`.
        """
        phase, count = self.phase, self.table.microbatches
        inputs = dict(held.shared)
        held = held.with_shared(prepare(phase, inputs, count, self.mesh))
        if phase.is_empty:
            return self._run_tail(held, {})
        if phase.guard is None:
            return self._run_tail(held, self._run_cells(held))
        conditions = evaluate(phase.guard, [held.shared[v] for v in phase.guard.inputs])
        runs = functools.reduce(jnp.logical_and, conditions)
        # All devices take the same branch, with its messages.
        sums = lax.cond(runs, lambda: self._run_cells(held), lambda: self._start(held.place))
        return self._run_tail(held, sums)

    # The loop over the table.

    def _run_cells(self, held: StageArrays) -> Flat:
        routes, place = self.routes, held.place
        numbers, kinds, rows = self._numbers
        pools = {pool: zeros(sizes, (routes.slots[pool],)) for pool, sizes in routes.sizes.items()}
        sums = self._start(place)
        patterns, pattern_of = routes.patterns()
        exchanges = [functools.partial(self._exchanged, pools) for pools in patterns]
        branches = [self._idle] + [functools.partial(self._cell, task, held) for task in numbers]

        def turn(carry: Any, row: Any) -> tuple[Any, None]:
            pools, sums = carry
            kinds, microbatches, reads, writes, pattern = row
            kind, microbatch = kinds[place], microbatches[place]
            made, sums = lax.switch(kind, branches, pools, sums, microbatch, reads[place])
            # Pools do not pass through the switch, which would copy them.
            sent = {pool: parcel for pool, parcel in made.items() if pool[1]}
            if sent:
                # All devices know which messages a step has, and exchange no others. It is one
                # switch, so that they exchange them in one order.
                made = {**made, **lax.switch(pattern, exchanges, sent)}
            for pool, parcel in made.items():
                number = writes[pool][place]
                if pool[1]:
                    parcel = _kept(pools[pool], parcel, number)
                pools = {**pools, pool: _written(pools[pool], parcel, number)}
            return (pools, sums), None

        table_rows = (kinds, rows, routes.read_slots, dict(routes.write_slots), pattern_of)
        (_, sums), _ = lax.scan(turn, (pools, sums), jax.tree.map(jnp.asarray, table_rows))
        return sums

    def _exchanged(self, pools: Collection[Pool], parcels: Mapping[Pool, Flat]) -> dict[Pool, Flat]:
        """Returns the arrivals on this device where each sends its parcels of some pools."""

        def sent(pool: Pool, parcel: Flat) -> Flat:
            pairs = self._pairs(pool)
            return {n: lax.ppermute(x, self.axis, pairs) for n, x in parcel.items()}

        return {p: sent(p, x) if p in pools else dict(x) for p, x in parcels.items()}

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
        held: StageArrays,
        pools: Mapping[Pool, Flat],
        sums: Flat,
        microbatch: Any,
        reads: Any,
    ) -> tuple[dict[Pool, Flat], Flat]:
        """Runs a cell; returns its parcels, and sums with what it adds."""
        cell = self.phase.cells[task]
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
        have.update({v: held.read(here, v) for v in cell.given})
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
            for op in self.phase.dependence.totals:
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
        runs: list[tuple[str, str, int, list[Any]]] = []
        for op in self.phase.dependence.totals:
            value = op.inputs[0]
            if value not in cell.added:
                continue
            name, first = packing.place[self._term[op]]
            more = flattened(value, made[value])
            if op.name == "collect":
                at = first + microbatch * more.size
                sums[name] = lax.dynamic_update_slice_in_dim(sums[name], more, at, 0)
                continue
            monoid = op.params["monoid"]
            for known, by, start, parts in runs:
                if (known, by, start + sum(x.size for x in parts)) == (name, monoid, first):
                    parts.append(more)
                    break
            else:
                runs.append((name, monoid, first, [more]))
        # Each update may copy the whole array: neighbours are updated together.
        for name, monoid, first, parts in runs:
            more = jnp.concatenate(parts) if len(parts) > 1 else parts[0]
            have = lax.slice_in_dim(sums[name], first, first + more.size)
            both = COMBINE[monoid](have, more).astype(have.dtype)
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

    def _run_tail(self, held: StageArrays, sums: Flat) -> tuple[Flat, list[Any]]:
        tail, program, place = self.tail, self.phase.tail, held.place
        totals = {op.outputs[0]: op for op in self.phase.dependence.totals}

        def compute(here: int, wanted: Sequence[Value], held: StageArrays) -> list[Any]:
            """Values of the tail on a device, from what it has and what is shared."""
            own = {v for v, place in tail.owners.items() if place == here and v in totals}
            part = needed(program, wanted, {*held.values(here), *own})
            have = [
                self._total(totals[v], here, sums) if v in own else held.read(here, v)
                for v in part.inputs
            ]
            return self._evaluate_tail(part, have)

        def exchange(values: Sequence[Value], held: StageArrays) -> StageArrays:
            """Computes values that all devices exchange parts of, outside of any branch."""
            part = needed(program, values, held.shared)
            found = self._evaluate_tail(part, [held.shared[v] for v in part.inputs])
            return held.with_shared(dict(zip(part.outputs, found, strict=True)))

        everywhere = [v for v in totals if tail.owners[v] == SHARED]
        held = held.with_shared({v: self._total(totals[v], 0, sums) for v in everywhere})
        devices = range(self.table.devices)
        held = exchange(tail.exchanged[0], held)
        for sent, exchanged in zip(tail.rounds, tail.exchanged[1:], strict=True):

            def round_of(
                here: int, sent: tuple[Value, ...] = sent, held: StageArrays = held
            ) -> list[Any]:
                mine = [v for v in sent if tail.owners[v] == here]
                found = dict(zip(mine, compute(here, mine, held), strict=True))
                return [
                    found[v].astype(summable(v.dtype))
                    if v in found
                    else jnp.zeros(v.shape, summable(v.dtype))
                    for v in sent
                ]

            parts = lax.switch(place, [functools.partial(round_of, here) for here in devices])
            summed = zip(sent, lax.psum(parts, self.axis), strict=True)
            held = held.with_shared({v: part.astype(v.dtype) for v, part in summed})
            held = exchange(exchanged, held)

        def kept(here: int) -> Flat:
            results = compute(here, tail.kept[here], held)
            layout = self.layouts[here]
            return layout.pack(dict(zip(layout.values, results, strict=True)), self.sizes)

        flat = lax.switch(place, [functools.partial(kept, here) for here in devices])
        part = needed(program, tail.shared, held.shared)
        found = dict(
            zip(
                part.outputs,
                self._evaluate_tail(part, [held.shared[v] for v in part.inputs]),
                strict=True,
            )
        )
        return flat, [found[v] for v in tail.shared]

    def _evaluate_tail(self, program: Any, have: Sequence[Any]) -> list[Any]:
        here = Coordinates(self.mesh, {axis: lax.axis_index(axis) for axis in self.mesh})
        return evaluate(program, have, here)


def _sent(array: Any, is_there: Any, axis: str) -> Any:
    """An array of one device on all devices of an axis."""
    part = jnp.where(is_there, array, jnp.zeros_like(array))
    return lax.psum(part.astype(summable(array.dtype)), axis).astype(array.dtype)


def _kept(pool: Flat, slot: Flat, number: Any) -> Flat:
    """The slot to be written: as it is there already where the number is negative."""
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
