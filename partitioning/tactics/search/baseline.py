"""The cost of the whole program on one device, kernel by kernel: the baseline of every estimate.

The simulator runs once, on the program before any tactic. An estimate then scales each kernel and
each buffer by the share of it that a device keeps.
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Collection, Mapping, Sequence

import numpy as np

from ...ir.program import Op, Program, Value
from ...rules import traits_of
from ...simulator.buffers import Assignment, assign
from ...simulator.device import Curve, Device
from ...simulator.fusion import Kernel
from ...simulator.graph import BRANCH, CONSTANT, ELEMENT, LOOP, PARAM, ArrayNode, build
from ...simulator.heap import Buffer
from ...simulator.memory import donation_pairs, held_throughout, memory_of
from ...simulator.timing import kernel_reads, kernel_work, work_seconds

#: The place of what is there before the first op.
BEFORE = -1


class Places:
    """All ops in one line, those inside a region before the op that holds it.

    Attributes:
      of: the place of an op.
      start: for an op with regions, the place of the first op inside.
      times: how often the op at a place runs.
      made: where a value is made; what a loop does not change is made where it was made outside.
      turns: how often a value is made anew: not in a loop that does not change it.
    """

    def __init__(self, program: Program):
        self.of: dict[Op, int] = {}
        self.start: dict[Op, int] = {}
        self.times: list[int] = []
        self.made: dict[Value, int] = dict.fromkeys(program.inputs, BEFORE)
        self.turns: dict[Value, int] = dict.fromkeys(program.inputs, 1)
        self._walk(program, 1)

    def _walk(self, program: Program, times: int) -> None:
        for op in program.ops:
            start = len(self.times)
            if op.regions:
                self.start[op] = start
                for region in op.regions:
                    self._enter(op, region, start, times * op.trips)
                    self._walk(region, times * op.trips)
            self.of[op] = len(self.times)
            self.times.append(times)
            turns = max((self.turns.get(v, 1) for v in op.inputs), default=1)
            for value in op.outputs:
                self.made[value] = self.of[op]
                self.turns[value] = times if op.regions else turns

    def _enter(self, op: Op, region: Program, start: int, times: int) -> None:
        same = len(op.inputs) == len(region.inputs) and op.name != "while"
        fixed = op.params["num_consts"] if op.name == "scan" else len(op.inputs)
        carried = fixed + op.params["num_carry"] if op.name == "scan" else fixed
        for i, value in enumerate(region.inputs):
            outside = op.inputs[i] if same and not fixed <= i < carried else None
            at = BEFORE + start if outside is None else self.made.get(outside, BEFORE)
            self.made[value] = at
            known = outside is not None and i < fixed
            self.turns[value] = self.turns.get(outside, 1) if known else times  # type: ignore[arg-type]


@dataclasses.dataclass
class KernelTable:
    """Columns of figures, one row for each kernel; those in loops with how often they run.

    Attributes:
      place: of the op at its root.
      times: how often it runs.
      fixed: seconds that it takes however little it does.
      arithmetic: seconds of its arithmetic alone, whole, but for its product.
      product: the FLOPs of its product, whole, the FLOP/s at most, and what part of them is
        reached by its size; None where it multiplies nothing.
      op: the op that does most of its arithmetic; None where there is none.
      traffic: (kernel, value, position among the operands of its op or -1, bytes) of every array
        that it reads or writes.
    """

    place: list[int] = dataclasses.field(default_factory=list)
    times: list[float] = dataclasses.field(default_factory=list)
    fixed: list[float] = dataclasses.field(default_factory=list)
    arithmetic: list[float] = dataclasses.field(default_factory=list)
    product: list[tuple[float, float, Curve] | None] = dataclasses.field(default_factory=list)
    op: list[Op | None] = dataclasses.field(default_factory=list)
    traffic: list[tuple[int, Value | None, int, float]] = dataclasses.field(default_factory=list)


class Baseline:
    """The whole program on one device.

    Args:
      program: the traced program.
      device: the device.
      donated: names of donated arguments.

    Attributes:
      places: the place of every op.
      kernels: the kernels that run.
      runs: the first and the last place of the kernels that an op is computed in.
      buffers: (first place, last place, value, bytes) of each buffer in the heap.
      lodged: (first place, last place, value, bytes, value, bytes) of each buffer inside an
        argument or a result that is not in use yet; the last two are that array's.
      packing: the ratio of the heap to the bytes in use at once.
      arguments, results: the values that are held throughout.
      overhead: seconds of the call besides its kernels.
    """

    def __init__(self, program: Program, device: Device, donated: Collection[str]):
        self.device = device
        self.places = Places(program)
        graph = build(program, device.kind)
        pairs = donation_pairs(program, donated)
        assignment = assign(graph, pairs, kind=device.kind)
        memory = memory_of(program, donated, device.kind, graph, assignment)
        self.values: dict[ArrayNode, Value] = dict(zip(graph.params, program.inputs, strict=True))
        self.kernels = KernelTable()
        self.runs: dict[Op, tuple[int, int]] = {}
        self.buffers: list[tuple[int, int, Value | None, float]] = []
        self.lodged: list[tuple[int, int, Value | None, float, Value | None, float]] = []
        self._at = 0
        self._add(assignment, 1.0)
        self._pass_views_on(program)
        used = [bool(node.users) or node in graph.outputs for node in graph.params]
        self.arguments = held_throughout(program, used)
        taken = set(pairs.values())
        self.results = [v for i, v in enumerate(program.outputs) if i not in taken]
        in_use = _peak(self.buffers, len(self.places.times))
        self.packing = memory.temporaries / in_use if in_use else 1.0
        self.overhead = device.call_seconds(len(program.outputs), assignment.chooses)

    def value_of(self, node: ArrayNode) -> Value | None:
        """The value that a node of the compiler's view holds, as far as is known."""
        found = self.values.get(node)
        if found is None and node.op is not None and node.op.outputs:
            at = node.data if node.kind == ELEMENT and isinstance(node.data, int) else 0
            found = node.op.outputs[min(at, len(node.op.outputs) - 1)]
            if found.nbytes != node.nbytes:  # An operand, brought into the order that it takes.
                found = next((v for v in node.op.inputs if v.nbytes == node.nbytes), found)
        return found

    def readers(self) -> collections.Counter[Value]:
        """The number of kernels that read each value."""
        table = self.kernels
        found = collections.Counter(v for _, v, _, _ in table.traffic if v is not None)
        # Of a kernel's rows the last says what it writes.
        last = {row: value for row, value, _, _ in table.traffic}
        found.subtract(v for v in last.values() if v is not None)
        return found

    def _add(self, assignment: Assignment, times: float) -> None:
        places, last = [], self._at
        for kernel in assignment.schedule:
            root = kernel.root
            if root.kind in (LOOP, BRANCH):
                bodies = assignment.inner[kernel]
                trips = root.body[0].trips if root.kind == LOOP else 1
                for body, inside in zip(bodies, root.body, strict=True):
                    self._name(root, inside.params)
                    if body is bodies[0] or root.kind == LOOP:
                        self._add(body, times * trips)
                device = self.device
                fixed = device.loop_seconds if root.kind == LOOP else device.branch_seconds
                if root.op is not None:
                    self._at = self.places.of.get(root.op, self._at)
                self._row(kernel, times * trips, fixed, None)
            elif root.kind not in (PARAM, CONSTANT, ELEMENT):
                if root.op is not None and not root.op.regions:
                    self._at = self.places.of.get(root.op, self._at)
                self._work(kernel, times)
            places.append(self._at if root.kind not in (PARAM, CONSTANT) else last)
        count = len(places)
        for buffer in assignment.temporaries:
            if buffer.owner.kind in (LOOP, BRANCH):
                continue  # What lies in it was added with its body.
            for first, end in buffer.spans:
                if count:
                    self.buffers.append(self._lying(buffer, first, end, places))
        for buffer, window in assignment.lodged:
            lying = self._lying(buffer, buffer.start, buffer.end, places)
            self.lodged.append((*lying, self.value_of(window.owner), float(window.nbytes)))

    def _lying(
        self, buffer: Buffer, first: int, end: int, places: Sequence[int]
    ) -> tuple[int, int, Value | None, float]:
        """(first place, last place, value, bytes) of a buffer in use from `first` to `end`."""
        last = len(places) - 1
        span = places[min(first, last)], places[min(end, last)]
        return min(span), max(span), self.value_of(buffer.owner), float(buffer.nbytes)

    def _pass_views_on(self, program: Program) -> None:
        """Gives each op without a kernel, a mere view, the span of places of its readers."""
        readers: dict[Value, list[Op]] = {}
        for op in reversed(program.ops):
            for region in op.regions:
                self._pass_views_on(region)
            if not op.regions and op not in self.runs:
                spans = [
                    self.runs.get(r, (self.places.of[r],) * 2)
                    for value in op.outputs
                    for r in readers.get(value, ())
                ]
                if spans:
                    self.runs[op] = min(s[0] for s in spans), max(s[1] for s in spans)
            for value in op.inputs:
                readers.setdefault(value, []).append(op)

    def _name(self, root: ArrayNode, params: list[ArrayNode]) -> None:
        """Says which values the parameters of a loop's body are."""
        op = root.op
        if op is None:
            return
        names: list[Value | None]
        if op.name == "scan":
            names = [None, *op.inputs, *op.outputs[op.params["num_carry"] :]]
        elif op.name == "while":
            names = [*op.regions[1].inputs]
        else:
            names = [*op.inputs[1:]]
        for node, value in zip(params, names, strict=False):
            if value is not None:
                self.values[node] = value

    def _row(self, kernel: Kernel, times: float, fixed: float, op: Op | None) -> None:
        table = self.kernels
        table.place.append(self._at)
        table.times.append(times)
        table.fixed.append(fixed)
        table.arithmetic.append(0.0)
        table.product.append(None)
        table.op.append(op)

    def _work(self, kernel: Kernel, times: float) -> None:
        device, table, at = self.device, self.kernels, self._at
        for node in kernel.members:
            if node.op is not None:
                first, last = self.runs.get(node.op, (at, at))
                self.runs[node.op] = min(first, at), max(last, at)
        work = kernel_work(kernel)
        busiest = max(kernel.members, key=lambda n: (n.op is not None, n.flops))
        op = busiest.op if busiest.flops else kernel.root.op
        row = len(table.place)
        self._row(kernel, times, device.kernel_seconds, op)
        alone = work_seconds(dataclasses.replace(work, nbytes=0.0, flops=0.0), device)
        table.arithmetic[row] = alone - device.kernel_seconds
        if work.flops:
            curve = device.matmul_efficiency(work.dtype, work.kind)
            table.product[row] = work.flops, device.matmul_peak(work.dtype), curve
        free = _operands(op)
        reads = kernel_reads(kernel)
        for source, nbytes in reads.items():
            at = next((i for i, size in free.items() if size == source.nbytes), -1)
            free.pop(at, None)
            table.traffic.append((row, self.value_of(source), at, nbytes))
        written = max(work.nbytes - sum(reads.values()), 0.0)
        table.traffic.append((row, self.value_of(kernel.root), -1, written))


def _operands(op: Op | None) -> dict[int, int]:
    """For a product, the bytes of its operands, by position."""
    if op is None or traits_of(op.name).flops not in ("matmul", "convolution"):
        return {}
    return {i: v.nbytes for i, v in enumerate(op.inputs)}


def _peak(buffers: list[tuple[int, int, Value | None, float]], count: int) -> float:
    change = np.zeros(count + 2)
    for first, last, _, nbytes in buffers:
        change[first] += nbytes
        change[last + 1] -= nbytes
    return float(np.cumsum(change).max())


def share_of(tiles: Mapping[str, int], mesh: Mapping[str, int]) -> float:
    """The share of a value that a device holds after the decisions on it."""
    share = 1.0
    for axis, dim in tiles.items():
        if dim >= 0:
            share /= mesh[axis]
    return share
