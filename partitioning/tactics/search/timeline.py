"""The queue of kernels, the wires and the heap of a candidate, from what a device keeps of each."""

from __future__ import annotations

import bisect
import dataclasses
import heapq
from collections.abc import Mapping

import numpy as np

from ...decide.graph import Node
from ...ir.program import Value
from ...simulator.timing import Wires
from .baseline import Baseline
from .fold import Folded


@dataclasses.dataclass(frozen=True)
class Estimated:
    """What a candidate is thought to cost on one device.

    Attributes:
      seconds: of one step.
      compute: of its kernels.
      communication: of its collectives.
      peak: bytes of memory.
    """

    seconds: float
    compute: float
    communication: float
    peak: float


@dataclasses.dataclass(frozen=True)
class Exchange:
    """One kind of collective, for every member of a class.

    Attributes:
      seconds: of one.
      levels: whose wires it takes.
      nbytes: of what it leaves on a device besides what was there.
    """

    seconds: float
    levels: tuple[str, ...]
    nbytes: float


#: For each member of a class: where it is asked for, what it waits for, where it is read first and
#: last, and how often it runs.
MemberPlaces = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray]

#: The collectives of a candidate.
Exchanges = list[tuple[Exchange, MemberPlaces]]


class Timeline:
    """The whole program's kernels and buffers as arrays, and what becomes of them.

    Args:
      folded: the program's classes.
      baseline: the whole program on one device.
      overlap: whether collectives run beside kernels.
      value_at, node_at, operand_at: where the shares of values, of nodes' work and of a product's
        operands stand in the array of shares.
      whole: where a share of one stands.
    """

    def __init__(
        self,
        folded: Folded,
        baseline: Baseline,
        overlap: bool,
        value_at: Mapping[Value, int],
        node_at: Mapping[Node, int],
        operand_at: Mapping[Node, int],
        whole: int,
    ):
        self.baseline = baseline
        self.overlap = overlap
        self._end = len(baseline.places.times)
        self._value_at, self._node_at, self._operand_at = value_at, node_at, operand_at
        self._whole = whole
        self._tables(folded)

    def _tables(self, folded: Folded) -> None:
        """The baseline's kernels and buffers as arrays of numbers."""
        base = self.baseline
        table = base.kernels

        def value_at(value: Value | None) -> int:
            stands = folded.class_of.get(value) if value is not None else None
            return self._whole if stands is None else self._value_at[stands]

        nodes = [
            folded.of.get(folded.graph.of[op]) if op in folded.graph.of else None for op in table.op
        ]
        self._kernel_place = np.array(table.place, np.int64)
        self._kernel_times = np.array(table.times)
        self._kernel_fixed = np.array(table.fixed)
        self._kernel_arithmetic = np.array(table.arithmetic)
        self._kernel_rate = np.array(table.rate)
        self._kernel_share = np.array(
            [self._whole if n is None else self._node_at[n] for n in nodes], np.int64
        )
        rows, shares, sizes = [], [], []
        for row, value, at, nbytes in table.traffic:
            node = nodes[row]
            operand = self._operand_at.get(node) if node is not None else None
            rows.append(row)
            shares.append(operand + at if operand is not None and at >= 0 else value_at(value))
            sizes.append(nbytes)
        self._traffic_row = np.array(rows, np.int64)
        self._traffic_share = np.array(shares, np.int64)
        self._traffic_bytes = np.array(sizes, float)
        self._buffer_first = np.array([b[0] for b in base.buffers], np.int64)
        self._buffer_last = np.array([b[1] for b in base.buffers], np.int64)
        self._buffer_share = np.array([value_at(b[2]) for b in base.buffers], np.int64)
        self._buffer_bytes = np.array([b[3] for b in base.buffers], float)
        held = [*base.arguments, *base.results]
        self._held_share = np.array([value_at(v) for v in held], np.int64)
        self._held_bytes = np.array([v.nbytes for v in held], float)

    def run(self, share: np.ndarray, transfers: Exchanges) -> Estimated:
        """What a candidate costs with these shares and these collectives."""
        rows = len(self._kernel_place)
        moved = np.bincount(
            self._traffic_row, self._traffic_bytes * share[self._traffic_share], rows
        )
        busy = np.maximum(
            self._kernel_arithmetic * share[self._kernel_share], moved / self._kernel_rate
        )
        seconds = self._kernel_times * (self._kernel_fixed + busy)
        done = np.cumsum(np.bincount(self._kernel_place, seconds, self._end + 1))
        compute = float(done[-1])
        communication, total = self._queues(done, transfers)
        peak = self._peak(share, transfers)
        return Estimated(total + self.baseline.overhead, compute, communication, peak)

    def _queues(self, done: np.ndarray, transfers: Exchanges) -> tuple[float, float]:
        """Seconds on the wires, and of all."""
        compute = float(done[-1])
        asked, ready, read, kind, times = [], [], [], [], []
        for i, (_, (emit, made, first, _, turns)) in enumerate(transfers):
            asked.append(emit)
            ready.append(made)
            read.append(np.minimum(first, self._end))
            kind.append(np.full(len(emit), i))
            times.append(turns)
        if not asked:
            return 0.0, compute
        emit, made = np.concatenate(asked), np.concatenate(ready)
        first, which = np.concatenate(read), np.concatenate(kind)
        lasting = np.array([t.seconds for t, _ in transfers])[which] * np.concatenate(times)
        communication = float(lasting.sum())
        device = self.baseline.device
        if not self.overlap:
            if device.skew:
                gaps = np.diff(np.sort(done[np.minimum(emit, self._end)]), prepend=0.0)
                skewed = np.minimum(device.skew * gaps, device.most_skew_seconds)
                communication += float(skewed.sum())
            return communication, compute + communication
        order = np.argsort(emit, kind="stable")
        padded = np.concatenate([[0.0], done])
        rows = zip(
            emit[order].tolist(),
            made[order].tolist(),
            padded[made[order] + 1].tolist(),
            first[order].tolist(),
            padded[first[order]].tolist(),
            lasting[order].tolist(),
            [transfers[i][0].levels for i in which[order].tolist()],
            strict=True,
        )
        wires = Wires()
        delay = 0.0
        delayed_at, delays = [-2], [0.0]
        waiting: list[tuple[int, float, float]] = []

        def wait(until: int) -> None:
            nonlocal delay
            while waiting and waiting[0][0] <= until:
                place, before, end = heapq.heappop(waiting)
                if end > before + delay:
                    delay = end - before
                    delayed_at.append(place)
                    delays.append(delay)

        for at, source, made_by, reader, unhindered, length, levels in rows:
            wait(at)
            late = delays[bisect.bisect_right(delayed_at, source) - 1]
            start = wires.send(levels, made_by + late, length)
            heapq.heappush(waiting, (reader, unhindered, start + length))
        wait(self._end - 1)
        return communication, max(compute + delay, wires.free())

    def _peak(self, share: np.ndarray, transfers: Exchanges) -> float:
        size = self._end + 2
        held = float((self._held_bytes * share[self._held_share]).sum())
        in_use = self._buffer_bytes * share[self._buffer_share]
        change = np.bincount(self._buffer_first, in_use, size) - np.bincount(
            self._buffer_last + 1, in_use, size
        )
        for transfer, (_, _, first, last, _) in transfers:
            if transfer.nbytes:
                ended = np.maximum(np.minimum(last, self._end), np.minimum(first, self._end)) + 1
                np.add.at(change, np.minimum(first, self._end), transfer.nbytes)
                np.add.at(change, ended, -transfer.nbytes)
        return held + float(np.cumsum(change).max(initial=0.0)) * self.baseline.packing
