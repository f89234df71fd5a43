"""Predicts what a pipelined step needs: the time of its table, and the memory of each stage."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping

from ..ir.program import Program, Value
from ..simulator.attach import Simulator
from ..simulator.device import Device
from ..simulator.memory import Memory, Owner
from ..simulator.presets import get_device
from ..simulator.simulate import Simulation
from ..simulator.timing import Event, Seconds, Timing
from .accounting import SegmentCost, TableTiming, lockstep_time
from .edges import Task
from .execution.flat import nbytes_of
from .execution.spmd import PipelineProgram
from .execution.tail import needed
from .stages.dependence import in_microbatches
from .table import PipelineCell


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

    @property
    def device(self) -> Device:
        """The device that is predicted for."""
        return get_device(self.simulator.device)

    @functools.cached_property
    def _cells(self) -> Mapping[Task, Simulation]:
        """The simulation of each cell that the table has."""
        cells = self.program.step.cells
        return {task: self._predict(cells[task].program) for task in self.program.routes.parcels}

    def _predict(self, program: Program) -> Simulation:
        return self.simulator.predict(program, self.program.mesh)

    @functools.cached_property
    def segments(self) -> tuple[SegmentCost, ...]:
        """Seconds of each segment's work on one micro-batch."""
        found = []
        for segment in range(self.program.step.count):
            times = {w: self._seconds((segment, w)) for w in ("forward", "inputs", "weights")}
            whole = self._seconds((segment, "backward"))
            found.append(SegmentCost(**times, backward=whole))
        return tuple(found)

    def _seconds(self, task: Task) -> float:
        cell = self._cells.get(task)
        if cell is None:
            return 0.0
        device = self.device
        return _running(cell) + device.loop_seconds + device.branch_seconds

    def _link(self, cell: PipelineCell, source: int, target: int) -> float:
        """Seconds of a message, whose size is that of the largest one of its kind."""
        routes, devices = self.program.routes, self.program.table.devices
        pool = ("message", (target - source) % devices)
        if source < 0:
            if len(self.program.table.placement[cell.segment]) > 1:
                return 0.0  # It lies on every device.
            # It goes to all devices, within the cell that reads it.
            pool = ("forward" if cell.work == "forward" else "backward", 0)
        nbytes = routes.nbytes(pool)
        segments = self.simulator.place(self.program.mesh)[self.program.axis]
        return max([s.level.latency + nbytes * s.sharing / s.level.bandwidth for s in segments])

    @functools.cached_property
    def timing(self) -> TableTiming:
        """The times of each cell, where all devices take each step together."""
        program = self.program
        return lockstep_time(program.table, program.step.edges, self.segments, self._link)

    @functools.cached_property
    def _updates(self) -> tuple[Simulation, ...]:
        """For each device the update of its own state."""
        program = self.program
        found = []
        for place, pairs in enumerate(program.tail.state):
            shared = [v for v, own in program.tail.owners.items() if own in (place, -1)]
            known = [v for v in program.step.tail.inputs if v in set(shared)]
            sent = [v for values in program.tail.rounds for v in values]
            after = [after for _, after in pairs]
            found.append(self._predict(needed(program.step.tail, after, [*known, *sent])))
        return tuple(found)

    @functools.cached_property
    def peaks(self) -> tuple[int, ...]:
        """Bytes that each device of the axis needs at once."""
        return tuple(sum(self._parts(place)) for place in range(self.program.table.devices))

    def _parts(self, place: int) -> tuple[int, int, int]:
        """Bytes of a device: arguments, results, temporaries."""
        program = self.program
        routes, step = program.routes, program.step.program
        packed = nbytes_of(program.sizes)
        arguments = packed + sum(v.nbytes * self._rows(v) for v in self._shared)
        outputs = sum(step.outputs[i].nbytes for i in program.returned)
        buffers = sum(routes.nbytes(pool) * count for pool, count in routes.slots.items())
        # What a cell makes, and what arrives, lies beside the pools for a while.
        parcels = sum(routes.nbytes(pool) * (2 if pool[1] else 1) for pool in routes.slots)
        working = [
            self._cells[task].memory.temporaries + self._cells[task].memory.outputs
            for task in self._cells
            if place in program.table.placement[task[0]]
        ]
        cells = buffers + parcels + max(working, default=0)
        update = self._updates[place].memory
        # The packed state is unpacked behind it.
        behind = max(update.temporaries + update.outputs, packed)
        # Sums pass through the switch of cells, which writes them anew.
        sums = nbytes_of(program.sums)
        temporaries = max(2 * sums + cells, sums + behind)
        return arguments + (0 if self.donated else packed), outputs, temporaries

    @property
    def _shared(self) -> list[Value]:
        return [self.program.step.program.inputs[i] for i in self.program.shared]

    def _rows(self, value: Value) -> int:
        return self.program.table.microbatches if in_microbatches(value) else 1

    def simulation(self) -> Simulation:
        """The cost of the device that needs most memory, and of the step's time."""
        program, timing = self.program, self.timing
        place = max(range(program.table.devices), key=self.peaks.__getitem__)
        arguments, outputs, temporaries = self._parts(place)
        events, flops = self._events(place)
        update = max(_running(one) for one in self._updates)
        busy = timing.busy[place] + update
        total = timing.total + update
        by_kind: dict[str, float] = {}
        for event in events:
            by_kind[event.kind] = by_kind.get(event.kind, 0.0) + event.seconds
        seconds = Seconds(busy, total - busy, total - busy, self.device.step_seconds)
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
        return Simulation(self.device, memory, flops, times)

    def _events(self, place: int) -> tuple[list[Event], float]:
        """Events of one device over time, and its floating point operations."""
        events, flops = [], 0.0
        for row in self.program.table.cells:
            cell = row[place]
            if cell is not None:
                one = self._cells[cell.segment, cell.work]
                begin, end = self.timing.starts[cell], self.timing.ends[cell]
                events.append(Event(str(cell), cell.work, begin, end - begin, 0.0, one.flops))
                flops += one.flops
        update = self._updates[place]
        begin = self.timing.total
        events.append(Event("update", "update", begin, _running(update), 0.0, update.flops))
        return events, flops + update.flops


def _running(cost: Simulation) -> float:
    """Seconds of kernels and of what is exposed of collectives, within a larger program."""
    return cost.predicted_seconds.compute + cost.predicted_seconds.exposed
