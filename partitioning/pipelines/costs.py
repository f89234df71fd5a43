"""Predicts what a pipelined step needs: the time of its table, and the memory of each stage."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping, Sequence

from ..ir.program import Program, Value
from ..simulator.attach import Simulator
from ..simulator.collectives import LIBRARIES, permute_seconds
from ..simulator.device import Device
from ..simulator.memory import Memory, Owner
from ..simulator.presets import get_device
from ..simulator.simulate import Simulation
from ..simulator.timing import Event, Seconds, Timing
from ..simulator.topology import Segment
from .accounting import SegmentCost, TableTiming, lockstep_time
from .edges import Task, Work
from .execution.flat import nbytes_of
from .execution.phase import PhaseProgram
from .execution.routes import EVERY
from .execution.spmd import PipelineProgram
from .execution.tail import needed
from .stages.dependence import in_microbatches
from .table import PipelineCell


@dataclasses.dataclass(frozen=True, eq=False)
class PhaseCosts:
    """The predicted costs of a phase.

    Args:
      program: the phase.
      simulator: predicts for a device and a topology.
    """

    program: PhaseProgram
    simulator: Simulator

    @property
    def device(self) -> Device:
        """The device that is predicted for."""
        return get_device(self.simulator.device)

    @functools.cached_property
    def cells(self) -> Mapping[Task, Simulation]:
        """The simulation of each cell that the table has."""
        if self.program.phase.is_empty:
            return {}
        cells = self.program.phase.cells
        return {task: self._predict(cells[task].program) for task in self.program.routes.parcels}

    def _predict(self, program: Program) -> Simulation:
        return self.simulator.predict(program, self.program.mesh)

    @functools.cached_property
    def segments(self) -> tuple[SegmentCost, ...]:
        """Seconds of each segment's work on one micro-batch."""
        found = []
        for segment in range(self.program.phase.count):
            times = {w: self._seconds((segment, w)) for w in ("forward", "inputs", "weights")}
            whole = self._seconds((segment, "backward"))
            found.append(SegmentCost(**times, backward=whole))
        return tuple(found)

    def _seconds(self, task: Task) -> float:
        cell = self.cells.get(task)
        if cell is None:
            return 0.0
        work, routes = self.program.phase.cells[task], self.program.routes
        own = [v for v in work.given if self.program.tail.owners.get(v, EVERY) != EVERY]
        # Arrays are cut out of flat ones, and laid into such.
        copied = [v.nbytes for v in (*own, *work.read)]
        copied += [routes.nbytes(parcel.pool) for parcel in routes.parcels[task]]
        added = sum(v.nbytes for v in work.added)
        copied += [added, 2 * added] if added else []
        return running(cell) + sum(map(self._copying, copied))

    def _copying(self, nbytes: float) -> float:
        """Seconds of a kernel that reads and writes so many bytes."""
        device = self.device
        return device.kernel_seconds + 2 * nbytes / device.bandwidth(2 * max(nbytes, 1.0))

    def _link(self, cell: PipelineCell, source: int, target: int) -> float:
        """Seconds of a message that goes to all devices within the cell that reads it."""
        if source >= 0 or len(self.program.table.placement[cell.segment]) > 1:
            return 0.0  # Every step exchanges these; or all devices have it.
        pool = ("forward" if cell.work == "forward" else "backward", 0)
        return permute_seconds(self.program.routes.nbytes(pool), self._segments)

    @property
    def _segments(self) -> Sequence[Segment]:
        return self.simulator.place(self.program.mesh)[self.program.axis]

    @functools.cached_property
    def exchanges(self) -> tuple[float, ...]:
        """Seconds of each step besides its cells: messages, and slots that are written."""
        routes, device = self.program.routes, self.device
        fixed = device.loop_seconds + device.branch_seconds
        # What arrives is chosen or left, and written.
        fixed += sum(
            (2 if pool[1] else 1) * self._copying(routes.nbytes(pool)) for pool in routes.sizes
        )
        found = [fixed] * self.program.table.steps
        for pool in routes.sizes:
            if pool[1]:
                both_ways = 2 * pool[1] == self.program.table.devices
                seconds = permute_seconds(
                    routes.nbytes(pool), self._segments, LIBRARIES[device.kind], both_ways
                )
                sends = routes.sends(pool).tolist()
                found = [t + seconds * one for t, one in zip(found, sends, strict=True)]
        return tuple(found)

    @functools.cached_property
    def timing(self) -> TableTiming:
        """The times of each cell, where all devices take each step together."""
        program = self.program
        if program.phase.is_empty:
            return TableTiming(0.0, {}, {}, (0.0,) * program.table.devices)
        return lockstep_time(
            program.table, program.phase.edges, self.segments, self._link,
            self.device.joint_seconds, self.exchanges,
        )  # fmt: skip

    @functools.cached_property
    def updates(self) -> tuple[Simulation, ...]:
        """For each device the update of its own state."""
        tail, program = self.program.tail, self.program.phase.tail
        found = []
        for place, after in enumerate(tail.kept):
            shared = {v for v, own in tail.owners.items() if own in (place, -1)}
            known = [v for v in program.inputs if v in shared]
            sent = [v for values in tail.rounds for v in values]
            found.append(self._predict(needed(program, after, [*known, *sent])))
        return tuple(found)

    @functools.cached_property
    def update_seconds(self) -> float:
        """Seconds until all devices have updated their state."""
        packed = 2 * self._copying(nbytes_of(self.program.sizes))
        return self.device.joint_seconds([running(one) + packed for one in self.updates])

    def temporaries(self, place: int, behind: int) -> int:
        """Bytes of a device while the phase runs; `behind` of them while its state is unpacked."""
        routes = self.program.routes
        update = self.updates[place].memory
        after = max(update.temporaries + update.outputs, behind)
        if self.program.phase.is_empty:
            return after
        buffers = sum(routes.nbytes(pool) * count for pool, count in routes.slots.items())
        # What a cell makes, and what arrives, lies beside the pools for a while.
        parcels = sum(routes.nbytes(pool) * (2 if pool[1] else 1) for pool in routes.slots)
        working = [
            cell.memory.temporaries + cell.memory.outputs
            for task, cell in self.cells.items()
            if place in self.program.table.placement[task[0]]
        ]
        cells = buffers + parcels + max(working, default=0)
        # Sums pass through the switch of cells, which writes them anew.
        sums = nbytes_of(self.program.sums)
        return max(2 * sums + cells, sums + after)

    @property
    def handed(self) -> int:
        """Bytes that a device holds of what the phase hands on."""
        return nbytes_of(self.program.sizes) + sum(v.nbytes for v in self.program.shared)


@dataclasses.dataclass(frozen=True, eq=False)
class PipelineCosts:
    """The predicted costs of a pipelined step.

    Args:
      program: the step.
      simulator: predicts for a device and a topology.
      donated: True if the state is given away.
    """

    program: PipelineProgram
    simulator: Simulator
    donated: bool

    @functools.cached_property
    def _phases(self) -> tuple[tuple[PhaseCosts, int], ...]:
        return tuple((PhaseCosts(one, self.simulator), n) for one, n in self.program.phases)

    @functools.cached_property
    def seconds(self) -> float:
        """Seconds of the tables of all phases, where all devices take each step together."""
        return sum(one.timing.total * times for one, times in self._phases)

    @functools.cached_property
    def busy(self) -> tuple[float, ...]:
        """For each device the seconds of its cells."""
        busy = [[t * times for t in one.timing.busy] for one, times in self._phases]
        return tuple(map(sum, zip(*busy, strict=True)))

    @functools.cached_property
    def peaks(self) -> tuple[int, ...]:
        """Bytes that each device of the axis needs at once."""
        return tuple(sum(self._parts(place)) for place in range(self.program.table.devices))

    def _parts(self, place: int) -> tuple[int, int, int]:
        """Bytes of a device: arguments, results, temporaries."""
        program = self.program
        step = program.step.program
        packed = nbytes_of(program.sizes)
        arguments = packed + sum(v.nbytes * self._rows(v) for v in self._shared)
        outputs = sum(step.outputs[i].nbytes for i in program.returned)
        *others, (last, _) = self._phases
        # The packed state is unpacked behind it.
        most = max(
            [last.temporaries(place, packed), *(one.temporaries(place, 0) for one, _ in others)]
        )
        handed = sum(one.handed for one, _ in others)
        return arguments + (0 if self.donated else packed), outputs, most + handed

    @property
    def _shared(self) -> list[Value]:
        return [self.program.step.program.inputs[i] for i in self.program.shared]

    def _rows(self, value: Value) -> int:
        return self.program.table.microbatches if in_microbatches(value) else 1

    def of_segments(self) -> tuple[SegmentCost, ...]:
        """Seconds of each segment's work on one micro-batch in all phases, each with the mean
        exchange of a step; 0 of work that the table has not.
        """
        parts = [(one, n) for one, n in self._phases if not one.program.phase.is_empty]

        def seconds(segment: int, work: Work) -> float:
            found = 0.0
            for one, times in parts:
                spent = one.segments[segment].time(work)
                found += times * (spent + sum(one.exchanges) / len(one.exchanges)) * (spent > 0)
            return found

        return tuple(
            SegmentCost(
                forward=seconds(segment, "forward"),
                inputs=seconds(segment, "inputs"),
                weights=seconds(segment, "weights"),
                backward=seconds(segment, "backward"),
            )
            for segment in range(self.program.table.segments)
        )

    def simulation(self) -> Simulation:
        """The cost of the device that needs most memory, and of the step's time."""
        program = self.program
        place = max(range(program.table.devices), key=self.peaks.__getitem__)
        arguments, outputs, temporaries = self._parts(place)
        events, flops = self._events(place)
        update = sum(one.update_seconds * times for one, times in self._phases)
        busy = self.busy[place] + update
        total = self.seconds + update
        by_kind: dict[str, float] = {}
        for event in events:
            by_kind[event.kind] = by_kind.get(event.kind, 0.0) + event.seconds
        device = get_device(self.simulator.device)
        seconds = Seconds(busy, total - busy, total - busy, device.step_seconds)
        owners = tuple(
            Owner(name, nbytes, "", kind, "")
            for name, nbytes, kind in (
                ("state and batch", arguments, "argument"),
                ("results", outputs, "output"),
                ("micro-batches in flight, gradients", temporaries, "temporary"),
            )
        )
        memory = Memory(arguments, outputs, temporaries, 0, 0, owners, (self.peaks[place],))
        times = Timing(seconds, by_kind, tuple(events), (), 0.0)
        return Simulation(device, memory, flops, times)

    def _events(self, place: int) -> tuple[list[Event], float]:
        """Events of one device over time, and its floating point operations."""
        events: list[Event] = []
        flops, start = 0.0, 0.0
        for one, times in self._phases:
            for _ in range(times):
                more, work = self._events_of(one, place, start)
                events += more
                flops += work
                start += one.timing.total + one.update_seconds
        return events, flops

    def _events_of(self, one: PhaseCosts, place: int, start: float) -> tuple[list[Event], float]:
        """The same of a phase that begins at `start`."""
        events, flops = [], 0.0
        for row in self.program.table.cells if one.cells else ():
            cell = row[place]
            if cell is not None:
                cost = one.cells[cell.segment, cell.work]
                begin, end = one.timing.starts[cell], one.timing.ends[cell]
                events.append(
                    Event(str(cell), cell.work, start + begin, end - begin, 0.0, cost.flops)
                )
                flops += cost.flops
        update = one.updates[place]
        begin = start + one.timing.total
        events.append(Event("update", "update", begin, running(update), 0.0, update.flops))
        return events, flops + update.flops


def priced(program: PipelineProgram, simulator: Simulator, donated: Sequence[str]) -> PipelineCosts:
    """The costs of a step of which some arguments, by name, are given away."""
    owned = {v.path.split("/")[0] for packing in program.owned for v in packing.values}
    return PipelineCosts(program, simulator, owned <= set(donated))


def running(cost: Simulation) -> float:
    """Seconds of kernels and of what is exposed of collectives, within a larger program."""
    return cost.predicted_seconds.compute + cost.predicted_seconds.exposed
