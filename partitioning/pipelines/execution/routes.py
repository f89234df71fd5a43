"""The buffers of a pipeline: what each cell hands to others, over which link, and its place.

What a cell makes for the cells of one device is a *parcel*. Parcels of one kind that one device
holds at once lie in different slots of a pool, and take a slot again once they are read.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from ...ir.program import Value
from ..edges import Task
from ..stages.cells import StagedPhase
from ..table import PipelineCell, PipelineTable
from .flat import FlatLayout, largest, nbytes_of

#: The device of a segment, or of a parcel, that all devices of the axis have.
EVERY = -1

#: (kind, shift): how far along the axis parcels of a pool come; those of shift 0 stay.
Pool = tuple[str, int]


@dataclasses.dataclass(frozen=True, eq=False)
class Parcel:
    """Values that one cell hands to the cells of one device.

    Attributes:
      maker: the task that makes it.
      device: where it is read; EVERY of a segment that runs on all devices. What such a segment
        reads of one device stays there, and comes to the others within the cell.
      pool: where it lies there.
      layout: the values in it.
    """

    maker: Task
    device: int
    pool: Pool
    layout: FlatLayout


@dataclasses.dataclass(frozen=True, eq=False)
class Routes:
    """The parcels of a table, and their slots.

    Attributes:
      parcels: for each task what it makes.
      reads: for each task the parcels that it reads values from.
      sizes: elements of a slot of each pool, by dtype.
      slots: how many slots each pool has.
      read_slots: int32 [steps, devices, reads], the slots of the parcels that a cell reads.
      write_slots: for each pool int32 [steps, devices], the slot of what arrives in a step, or -1.
    """

    parcels: Mapping[Task, Sequence[Parcel]]
    reads: Mapping[Task, tuple[Parcel, ...]]
    sizes: Mapping[Pool, Mapping[str, int]]
    slots: Mapping[Pool, int]
    read_slots: np.ndarray
    write_slots: Mapping[Pool, np.ndarray]

    def sends(self, pool: Pool) -> np.ndarray:
        """For each step, True if something arrives in a pool: bool [steps]."""
        return (self.write_slots[pool] >= 0).any(axis=1)

    def patterns(self) -> tuple[list[frozenset[Pool]], np.ndarray]:
        """The pools that messages arrive in together.

        Returns:
          The different sets of pools, and for each step the number of its own: int32 [steps].
        """
        sends = {pool: self.sends(pool).tolist() for pool in self.sizes if pool[1]}
        steps = range(self.read_slots.shape[0])
        sets = [frozenset(pool for pool, of in sends.items() if of[step]) for step in steps]
        found = list(dict.fromkeys(sets))
        return found, np.array([found.index(one) for one in sets], np.int32)

    def nbytes(self, pool: Pool) -> int:
        """Bytes of a slot of a pool, or of a message to it."""
        return nbytes_of(self.sizes.get(pool, {}))


def routed(phase: StagedPhase, table: PipelineTable) -> Routes:
    """Lays out the buffers of a table.

    Args:
      phase: the cells.
      table: its cells have one device each, or all.

    Raises:
      ValueError: a segment that some devices run at once, but not all.
    """
    device = devices_of(table)
    tasks = sorted({(c.segment, c.work) for c in table.step_of})
    readers: dict[Value, list[Task]] = {}
    for task in tasks:
        for value in phase.cells[task].read:
            readers.setdefault(value, []).append(task)
    parcels: dict[Task, list[Parcel]] = {task: [] for task in tasks}
    for segment in range(phase.count):
        for maker in filter(phase.cells.__contains__, _makers(segment)):
            values = phase.cells[maker].made
            # Whichever of them makes the gradients of inputs, they are one parcel.
            twin: Task = (segment, "inputs") if maker[1] == "backward" else maker
            for parcel in _parcels(maker, values, readers, device, table.devices):
                for task in {maker, twin} & parcels.keys():
                    parcels[task].append(parcel)
    every = list(dict.fromkeys(parcel for made in parcels.values() for parcel in made))
    reads: dict[Task, tuple[Parcel, ...]] = {}
    for task in tasks:
        wanted = set(phase.cells[task].read)
        place = device[task[0]]
        # What gradients of inputs leave to those of weights is not made where both are one cell.
        here = [
            p
            for p in every
            if p.device in (EVERY, device[p.maker[0]] if place == EVERY else place)
            and (p.maker[1] != "inputs" or task == (p.maker[0], "weights"))
        ]
        reads[task] = tuple(p for p in here if not wanted.isdisjoint(p.layout.values))
    pools = {parcel.pool for parcel in every}
    sizes = {pool: largest(p.layout for p in every if p.pool == pool) for pool in sorted(pools)}
    return _slotted(table, parcels, reads, sizes)


def devices_of(table: PipelineTable) -> list[int]:
    """The device of each segment, or EVERY.

    Raises:
      ValueError: a segment that some devices run at once, but not all.
    """
    device = []
    for segment, places in enumerate(table.placement):
        if 1 < len(places) < table.devices:
            raise ValueError(
                f"segment {segment} is placed on devices {[*places]}; a segment runs on one "
                f"device, or on all {table.devices}"
            )
        device.append(places[0] if len(places) == 1 else EVERY)
    return device


def _makers(segment: int) -> tuple[Task, ...]:
    return (segment, "forward"), (segment, "backward"), (segment, "inputs")


def _parcels(
    maker: Task,
    values: Sequence[Value],
    readers: Mapping[Value, list[Task]],
    device: Sequence[int],
    devices: int,
) -> Iterator[Parcel]:
    """The results of a task, for each device that reads of it.

    Of the gradients of inputs that is what other segments read of them, and, as a parcel of its
    own, what those of weights do.
    """
    segment, work = maker
    wanted: dict[int, dict[Value, None]] = {}
    for value in values:
        for reader in readers.get(value, ()):
            if work == "forward" or (reader == (segment, "weights")) == (work == "inputs"):
                place = device[reader[0]]
                if EVERY in (place, device[segment]):
                    place = device[segment]
                wanted.setdefault(place, {})[value] = None
    for place, found in wanted.items():
        shift = (place - device[segment]) % devices
        kind = work if shift == 0 else "message"
        yield Parcel(maker, place, (kind, shift), FlatLayout.of(found))


def _slotted(
    table: PipelineTable,
    parcels: Mapping[Task, Sequence[Parcel]],
    reads: Mapping[Task, tuple[Parcel, ...]],
    sizes: Mapping[Pool, Mapping[str, int]],
) -> Routes:
    """Gives each parcel of each micro-batch a slot from the step it is made in to its last read."""
    last: dict[tuple[Parcel, int], int] = {}
    for cell, at in table.step_of.items():
        for parcel in reads[cell.segment, cell.work]:
            key = parcel, cell.microbatch
            last[key] = max(last.get(key, at), at)
    steps, devices = table.steps, table.devices
    width = max([len(one) for one in reads.values()], default=0)
    read_slots = np.zeros((steps, devices, max(width, 1)), np.int32)
    write_slots = {pool: np.full((steps, devices), -1, np.int32) for pool in sizes}
    slots = dict.fromkeys(sizes, 0)
    slot: dict[tuple[Parcel, int], int] = {}
    busy: dict[tuple[Pool, int], dict[int, int]] = {}  # slot to the last step that reads it
    for at, row in enumerate(table.cells):
        for place, busy_cell in enumerate(row):
            if busy_cell is None:
                continue
            for i, parcel in enumerate(reads[busy_cell.segment, busy_cell.work]):
                read_slots[at, place, i] = slot[parcel, busy_cell.microbatch]
        for cell in dict.fromkeys(filter(None, row)):
            for parcel in parcels[cell.segment, cell.work]:
                key = parcel, cell.microbatch
                places = range(devices) if parcel.device == EVERY else (parcel.device,)
                taken = [busy.setdefault((parcel.pool, place), {}) for place in places]
                # A cell reads before it writes, and messages arrive at the end of a step.
                number = next(
                    k for k in itertools.count() if all(one.get(k, -1) <= at for one in taken)
                )
                slot[key] = number
                for one in taken:
                    one[number] = last.get(key, at)
                write_slots[parcel.pool][at, [*places]] = number
                slots[parcel.pool] = max(slots[parcel.pool], number + 1)
    return Routes(parcels, reads, sizes, slots, read_slots, write_slots)


def cell_numbers(table: PipelineTable) -> tuple[dict[Task, int], np.ndarray, np.ndarray]:
    """Numbers the kinds of cells; 0 is idle.

    Returns:
      The number of each task, and int32 [steps, devices] the numbers and micro-batches of cells.
    """
    tasks = sorted({(c.segment, c.work) for c in table.step_of})
    number = {task: i + 1 for i, task in enumerate(tasks)}

    def of(cell: PipelineCell | None) -> int:
        return 0 if cell is None else number[cell.segment, cell.work]

    numbers = np.array([[of(c) for c in row] for row in table.cells], np.int32)
    rows = np.array(
        [[0 if c is None else c.microbatch for c in row] for row in table.cells], np.int32
    )
    return number, numbers, rows
