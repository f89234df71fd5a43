"""Times a program on one device of a mesh: kernel by kernel, collective by collective.

A kernel costs a roofline, the slower of its arithmetic and its memory traffic, plus a fixed
overhead. A collective costs what the topology says, on the wires of the levels that it spans.
Collectives may run while independent kernels do, and beside each other on different wires. A
collective takes a wire as soon as both are ready. A gather that needs no result of a loop's last
turn runs during that turn.
"""

from __future__ import annotations

import bisect
import collections
import dataclasses
import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from ..ir.program import COLLECTIVES, Op
from ..rules import traits_of
from .buffers import Assignment
from .collectives import LIBRARIES, collective_cost
from .device import Device
from .fusion import Kernel
from .graph import BRANCH, CONSTANT, ELEMENT, LOOP, PARAM, ArrayGraph, ArrayNode
from .topology import Segment, spanned


@dataclasses.dataclass(frozen=True)
class Event:
    """One kernel, collective or loop on the timeline of a device.

    Attributes:
      name: what the kernel computes.
      kind: a kind of product (`device.PRODUCTS`), "memory" (bound by traffic), "loop", "branch" or
        a collective's name.
      start: seconds from the start of the step.
      seconds: how long it takes, all turns of a loop together.
      nbytes: bytes moved: through memory, or between devices.
      flops: floating point operations.
      op: the op at the root of the kernel.
    """

    name: str
    kind: str
    start: float
    seconds: float
    nbytes: float
    flops: float
    op: Op | None = dataclasses.field(default=None, repr=False, compare=False)

    @property
    def source(self) -> str:
        """The line of the user's code, "file.py:12", or ""."""
        return self.op.source if self.op is not None else ""

    def to_json(self) -> dict[str, Any]:
        """The figures by name."""
        return {
            "name": self.name,
            "kind": self.kind,
            "start": self.start,
            "seconds": self.seconds,
            "bytes": self.nbytes,
            "flops": self.flops,
            "source": self.source,
        }


@dataclasses.dataclass(frozen=True)
class Seconds:
    """The time of one step by part.

    Attributes:
      compute: kernels.
      communication: collectives.
      exposed: the part of `communication` during which no kernel runs.
      overhead: the fixed cost of calling the program.
    """

    compute: float
    communication: float
    exposed: float
    overhead: float

    @property
    def total(self) -> float:
        """Seconds from call to result."""
        return self.compute + self.exposed + self.overhead

    @property
    def apart(self) -> float:
        """Seconds from call to result if no collective runs beside a kernel."""
        return self.compute + self.communication + self.overhead

    def to_json(self) -> dict[str, float]:
        """The figures by name."""
        return {**dataclasses.asdict(self), "total": self.total}


@dataclasses.dataclass(frozen=True)
class Timing:
    """The events of a run and their times.

    Attributes:
      seconds: in all.
      by_kind: seconds of each kind of event.
      events: in order; of a loop, those of its first turn.
      levels: the levels of the wires in use.
      apart: seconds of work since the devices met last.
    """

    seconds: Seconds
    by_kind: Mapping[str, float]
    events: tuple[Event, ...]
    levels: tuple[str, ...]
    apart: float


@dataclasses.dataclass
class Work:
    """The work of one kernel, independent of the device's speed.

    Attributes:
      kind: as `Event.kind`.
      dtype: of the arithmetic.
      flops: of matrix products and convolutions.
      vector_flops: elementwise operations.
      transcendentals: exponentials and their kin.
      nbytes: bytes read and written.
      transposed: (elements of the operand, terms of each sum) for every product with a transposed
        right operand.
    """

    kind: str
    dtype: str
    flops: float
    vector_flops: float
    transcendentals: float
    nbytes: float
    transposed: tuple[tuple[int, int], ...] = ()


def kernel_work(kernel: Kernel) -> Work:
    """The arithmetic and the memory traffic of a kernel."""
    root = kernel.root
    kind, dtype, flops, vector, transcendental = "memory", "float32", 0.0, 0.0, 0.0
    transposed = []
    for node in kernel.members:
        if node.op is not None and _multiplies(node, node.op):
            kind = _product_kind(node.op)
            dtype = str(node.op.inputs[0].dtype)
            flops += node.flops
            if node.name == "dot":
                transposed += _transposed(node, node.op)
        else:
            vector += node.flops
        transcendental += node.transcendentals
    read = sum(kernel_reads(kernel).values())
    nbytes = read + _written(root)
    return Work(kind, dtype, flops, vector, transcendental, nbytes, tuple(transposed))


def kernel_reads(kernel: Kernel) -> dict[ArrayNode, float]:
    """The bytes that a kernel reads of each of its inputs."""
    members = set(kernel.members)
    read: dict[ArrayNode, float] = {}
    for source in kernel.inputs:
        if source.nbytes < 1024:
            read[source] = float(source.nbytes)
            continue
        needed = 0.0
        for user in source.users:
            if user in members and needed < source.nbytes:
                if traits_of(user.name).traffic == "part" and user.operands[0] is source:
                    needed += user.nbytes
                elif user.in_place >= 0 and user.operands[user.in_place] is source:
                    needed += _written(user)
                else:
                    needed = math.inf
        read[source] = min(needed, source.nbytes)
    return read


def _multiplies(node: ArrayNode, op: Op) -> bool:
    """True if a node is the product or convolution of its op, and not a copy made for it."""
    return traits_of(op.name).flops in ("matmul", "convolution") and node.name in ("dot", op.name)


def _transposed(node: ArrayNode, op: Op) -> list[tuple[int, int]]:
    """(elements, terms of a sum) of a product's right operand, if summed dimensions lie last."""
    contract, batch = op.params["dimension_numbers"]
    side = 0 if node.late else 1  # A result that is wanted transposed has its operands swapped.
    value, operand = op.inputs[side], node.operands[min(side, len(node.operands) - 1)]
    free = [d for d in range(value.ndim) if d not in contract[side] and d not in batch[side]]
    terms = math.prod(value.shape[d] for d in contract[side])
    if terms == 1 or all(value.shape[d] == 1 for d in free):
        return []
    copied = operand.op is op and traits_of(operand.name).view == "order"
    first = side == 1 if copied else min(contract[side]) < min(free)
    return [] if first else [(value.size, terms)]


def _product_kind(op: Op) -> str:
    if traits_of(op.name).flops != "convolution":
        return "matmul"
    groups = op.params["feature_group_count"] * op.params["batch_group_count"]
    spatial = (
        op.params["dimension_numbers"].rhs_spec[2:],
        op.params["dimension_numbers"].out_spec[2:],
    )
    window, result = (
        math.prod(v.shape[d] for d in dims)
        for v, dims in zip((op.inputs[1], op.outputs[0]), spatial, strict=True)
    )
    gradient = op.params["batch_group_count"] > 1 or window > result
    kind = "weight_gradient" if gradient else "convolution"
    return kind if groups == 1 else f"grouped_{kind}"


def _written(node: ArrayNode) -> float:
    """Bytes a node writes: of an in-place update only the update."""
    if node.in_place >= 0 and node.op is not None:
        updates = [n.nbytes for i, n in enumerate(node.operands) if i != node.in_place]
        return float(min(node.nbytes, max(updates, default=0)))
    return float(node.nbytes)


def work_seconds(work: Work, device: Device) -> float:
    """Seconds that a kernel takes on a device."""
    arithmetic = (
        work.vector_flops + work.transcendentals * device.transcendental_flops
    ) / device.vector_flops
    if work.flops:
        rate = device.matmul_rate(work.dtype, work.flops, work.kind)
        arithmetic += work.flops / rate
    if device.transposed_seconds is not None:
        for elements, terms in work.transposed:
            arithmetic += elements * device.transposed_seconds.at(terms)
    return device.kernel_seconds + max(
        arithmetic, work.nbytes / device.bandwidth(max(work.nbytes, 1.0))
    )


class Wires:
    """The times at which wires between devices are taken, by their level."""

    def __init__(self) -> None:
        self.taken: dict[str, tuple[list[float], list[float]]] = {}

    def send(self, levels: Iterable[str], ready: float, seconds: float) -> float:
        """Takes the wires of these levels for a while, as soon as all are free for so long.

        Returns:
          The start.
        """
        wires = [self.taken.setdefault(level, ([], [])) for level in levels]
        if all(not ends or ends[-1] < ready for _, ends in wires):
            for starts, ends in wires:
                starts.append(ready)
                ends.append(ready + seconds)
            return ready
        start, moved = ready, True
        while moved:
            moved = False
            for starts, ends in wires:
                place = bisect.bisect_right(ends, start)
                while place < len(starts) and starts[place] < start + seconds:
                    start, moved = ends[place], True
                    place += 1
        for starts, ends in wires:
            place = bisect.bisect_right(starts, start)
            if place and ends[place - 1] == start:
                ends[place - 1] = start + seconds
            else:
                starts.insert(place, start)
                ends.insert(place, start + seconds)
        return start

    def free(self) -> float:
        """The time from which the last of them stays free."""
        return max((ends[-1] for _, ends in self.taken.values() if ends), default=0.0)


@dataclasses.dataclass(frozen=True)
class Transfer:
    """A collective on the wires: seconds, bytes of the whole, and the levels that it spans."""

    seconds: float
    nbytes: float
    levels: tuple[str, ...]


class Queues:
    """Times assignments on one device of a mesh.

    Args:
      device: the device.
      placement: mesh axis to the levels it spans, as `Topology.place` gives it.
      overlap: True if collectives run beside independent kernels.
    """

    def __init__(
        self,
        device: Device,
        placement: Mapping[str, Sequence[Segment]] | None = None,
        overlap: bool = True,
    ):
        self.device = device
        self.placement = dict(placement or {})
        self.overlap = overlap
        self._transfers: dict[tuple[str, float, tuple[str, ...]], Transfer] = {}

    def time(
        self,
        assignment: Assignment,
        results: int | None = None,
        ahead: Collection[ArrayNode] = (),
        apart: float = math.inf,
    ) -> Timing:
        """Runs the schedule on a queue of kernels and on the wires, each kernel after its inputs.

        Args:
          assignment: the kernels and those of the bodies of loops.
          results: how many arrays the program returns; None for a body, which nobody calls.
          ahead: collectives that ran before this turn of a loop; those of the next turn run now.
          apart: seconds of work since the devices met last; they start a step one after another,
            as after much work.
        """
        device = self.device
        ready: dict[ArrayNode, float] = {}
        compute_free = compute = wire = 0.0
        wires = Wires()
        busy: dict[str, float] = collections.defaultdict(float)
        met = -apart  # The work done when the devices met last.
        by_kind: dict[str, float] = collections.defaultdict(float)
        events = []
        for kernel in assignment.schedule:
            root = kernel.root
            if root.kind in (PARAM, CONSTANT):
                ready[root] = 0.0
                continue
            if root.kind == ELEMENT:
                ready[root] = ready[root.operands[0]]
                continue
            after = max((ready[n] for n in kernel.inputs), default=0.0)
            if root.kind in (LOOP, BRANCH):
                inner = self.bodies(kernel, assignment, compute - met)
                seconds = inner.seconds.compute + inner.seconds.exposed
                start = max(after, compute_free, wires.free() if inner.levels else 0.0)
                compute_free = start + seconds
                if inner.levels:
                    wires.send(inner.levels, start, seconds)
                compute += inner.seconds.compute
                met = compute - inner.apart
                wire += inner.seconds.communication
                for kind, part in inner.by_kind.items():
                    by_kind[kind] += part
                name = "loop" if root.kind == LOOP else "branch"
                events.append(self.event(root, name, start, seconds, 0.0, 0.0))
                ready[root] = compute_free
                continue
            flops = 0.0
            if root.name in COLLECTIVES and root.op is not None:
                transfer = self.collective(root.op, root.data)
                seconds, nbytes = transfer.seconds, transfer.nbytes
                if device.skew:
                    seconds += min(device.skew * (compute - met), device.most_skew_seconds)
                met = compute
                for level in transfer.levels:
                    busy[level] += seconds
                if root in ahead:
                    start = -seconds
                else:
                    start = after if self.overlap else max(after, compute_free)
                    start = wires.send(transfer.levels, start, seconds)
                if not self.overlap:
                    compute_free = start + seconds
                wire += seconds
                kind = root.name
            else:
                work = kernel_work(kernel)
                nbytes, flops = work.nbytes, work.flops + work.vector_flops
                seconds = work_seconds(work, device)
                start = max(after, compute_free)
                compute_free = start + seconds
                compute += seconds
                kind = work.kind
            ready[root] = start + seconds
            by_kind[kind] += seconds
            events.append(self.event(root, kind, start, seconds, nbytes, flops))
        # What runs ahead for the next turn finds the wires busy with the rest of this one.
        total = max(compute_free, wires.free(), *(busy.values() if ahead else ()))
        exposed = max(total - compute, 0.0)
        levels = tuple(dict.fromkeys([*busy, *wires.taken]))
        overhead = 0.0
        if results is not None:
            overhead = device.call_seconds(results, assignment.chooses)
        spent = Seconds(compute, wire, exposed, overhead)
        return Timing(spent, dict(by_kind), tuple(events), levels, compute - met)

    def bodies(self, kernel: Kernel, assignment: Assignment, apart: float = math.inf) -> Timing:
        """All turns of a loop, or the costliest branch, so long after the devices met."""
        bodies = assignment.inner[kernel]
        timings = [self.time(body, apart=apart) for body in bodies]
        first = max(timings, key=lambda t: t.seconds.total)
        if kernel.root.kind == BRANCH:
            spent = first.seconds
            spent = dataclasses.replace(spent, compute=spent.compute + self.device.branch_seconds)
            return dataclasses.replace(first, seconds=spent)
        body = bodies[timings.index(first)]
        trips, turn = kernel.root.body[0].trips, first
        if trips > 1:
            ahead = _ahead(bodies[0], kernel.root.body[0]) if self.overlap else ()
            if ahead or (first.levels and self.device.skew):
                turn = self.time(body, None, ahead, first.apart)
        more = trips - 1
        compute = (first.seconds.compute + self.device.loop_seconds) * trips
        wire = first.seconds.communication + more * turn.seconds.communication
        exposed = first.seconds.exposed + more * turn.seconds.exposed
        seconds = Seconds(compute, wire, exposed, 0.0)
        by_kind = {k: v + more * turn.by_kind[k] for k, v in first.by_kind.items()}
        apart = turn.apart if first.levels else apart + compute
        return Timing(seconds, by_kind, first.events, first.levels, apart)

    def collective(self, op: Op, combined: int | None = None) -> Transfer:
        """The transfer of a collective on the levels that its axes span.

        Args:
          op: the collective, or one of those that are combined.
          combined: bytes of all of those; None if it is not combined.
        """
        axes = op.params["axes"]
        values = op.outputs if op.name == "all_gather" else op.inputs
        nbytes = float(sum(v.nbytes for v in values) if combined is None else combined)
        names = (axes,) if isinstance(axes, str) else tuple(axes)
        key = op.name, nbytes, names
        if (known := self._transfers.get(key)) is None:
            known = transfer_of(op.name, nbytes, spanned(self.placement, names), self.device)
            self._transfers[key] = known
        return known

    def event(
        self, node: ArrayNode, kind: str, start: float, seconds: float, nbytes: float, flops: float
    ) -> Event:
        return Event(node.name, kind, start, seconds, nbytes, flops, node.op)


def transfer_of(kind: str, nbytes: float, segments: Sequence[Segment], device: Device) -> Transfer:
    """A collective of a kind, of so many bytes (see `bytes_sent`), over what its axes span."""
    cost = collective_cost(kind, nbytes, segments, LIBRARIES[device.kind])
    seconds = cost.seconds
    if cost.algorithm not in ("none", "measured"):
        # Reading and writing local memory bounds even the fastest link.
        seconds = max(seconds, 2 * nbytes / device.bandwidth(max(nbytes, 1.0)))
    return Transfer(seconds, nbytes, tuple(dict.fromkeys(s.level.name for s in segments)))


def _ahead(body: Assignment, graph: ArrayGraph) -> set[ArrayNode]:
    """The gathers of a loop's body that need nothing of the turn before."""
    carried = set(graph.carried)
    early: set[ArrayNode] = set()
    gathers: set[ArrayNode] = set()
    for kernel in body.schedule:
        root = kernel.root
        if root.kind in (PARAM, CONSTANT):
            if root not in carried:
                early.add(root)
        elif all(n in early for n in (root.operands if root.kind == ELEMENT else kernel.inputs)):
            early.add(root)
            if root.name == "all_gather" and root.op is not None:
                gathers.add(root)
    return gathers
