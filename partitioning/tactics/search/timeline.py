"""The queue of kernels, the wires and the heap of a candidate, from what a device keeps of each."""

from __future__ import annotations

import bisect
import dataclasses
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from ...decide.node import Node
from ...ir.program import Value
from ...simulator.device import Curve
from ...simulator.timing import Wires
from .baseline import Baseline
from .classes import ClassGraph


@dataclasses.dataclass(frozen=True)
class Estimated:
    """The estimated cost of a candidate on one device.

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
      seconds: of one exchange.
      levels: the levels of the wires that it takes.
      nbytes: bytes that it adds to the memory of a device.
    """

    seconds: float
    levels: tuple[str, ...]
    nbytes: float


#: For each member of a class: where it is asked for, what it waits for, where it is read first and
#: last, and how often it runs.
MemberPlaces = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray]

#: The collectives of a candidate.
Exchanges = list[tuple[Exchange, MemberPlaces]]


class Products(NamedTuple):
    """Products with the same efficiency as a function of their size.

    Attributes:
      rows: the rows of their kernels.
      flops: of the whole products.
      least: seconds of the whole products at the device's peak.
      efficiency: the share of the peak that they reach, by FLOPs.
    """

    rows: np.ndarray
    flops: np.ndarray
    least: np.ndarray
    efficiency: Curve

    def seconds(self, share: np.ndarray) -> np.ndarray:
        """Seconds of these products, given the share of each that a device does."""
        if self.efficiency.is_flat:
            return self.least * share / self.efficiency.values[0]
        return self.least * share / self.efficiency.at_each(self.flops * share)


def _products(of_rows: Sequence[tuple[float, float, Curve] | None]) -> list[Products]:
    by_curve: dict[Curve, list[tuple[int, float, float]]] = {}
    for row, product in enumerate(of_rows):
        if product is not None:
            flops, peak, curve = product
            by_curve.setdefault(curve, []).append((row, flops, flops / peak))
    found = []
    for curve, rows in by_curve.items():
        at, work, least = (np.array(column) for column in zip(*rows, strict=True))
        found.append(Products(at, work, least, curve))
    return found


class Timeline:
    """The whole program's kernels and buffers as arrays, scaled by a candidate's shares.

    Args:
      classes: the program's classes.
      baseline: the whole program on one device.
      overlap: True if collectives run beside kernels.
      value_at, node_at, operand_at, made_at: indices in the array of shares: of values, of nodes'
        work, of a product's operands, and of values as they are made and as they are kept.
      one_at: the index of a share of one.
    """

    def __init__(
        self,
        classes: ClassGraph,
        baseline: Baseline,
        overlap: bool,
        value_at: Mapping[Value, int],
        node_at: Mapping[Node, int],
        operand_at: Mapping[Node, int],
        made_at: Mapping[Value, tuple[int, int]],
        one_at: int,
    ):
        self.baseline = baseline
        self.overlap = overlap
        self._end = len(baseline.places.times)
        self._value_at, self._node_at, self._operand_at = value_at, node_at, operand_at
        self._made_at = made_at
        self._one_at = one_at
        self._tables(classes)

    def _tables(self, classes: ClassGraph) -> None:
        """The baseline's kernels and buffers as arrays of numbers."""
        base = self.baseline
        table = base.kernels

        def value_at(value: Value | None) -> int:
            stands = classes.class_of.get(value) if value is not None else None
            return self._one_at if stands is None else self._value_at[stands]

        def made_at(value: Value | None) -> tuple[int, int]:
            stands = classes.class_of.get(value) if value is not None else None
            at = value_at(value)
            return (at, at) if stands is None else self._made_at.get(stands, (at, at))

        of, apart = classes.graph.of, classes.by_op.of
        nodes = [apart[of[op]] if op in of else None for op in table.op]
        self._kernel_place = np.array(table.place, np.int64)
        self._kernel_times = np.array(table.times)
        self._kernel_fixed = np.array(table.fixed)
        self._kernel_arithmetic = np.array(table.arithmetic)
        self._products = _products(table.product)
        self._kernel_share = np.array(
            [self._one_at if n is None else self._node_at[n] for n in nodes], np.int64
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
        made = np.array([made_at(b[2]) for b in base.buffers], np.int64).reshape(-1, 2)
        self._buffer_made, self._buffer_kept = made.T.copy()
        self._buffer_bytes = np.array([b[3] for b in base.buffers], float)
        self._lodged_first = np.array([b[0] for b in base.lodged], np.int64)
        self._lodged_last = np.array([b[1] for b in base.lodged], np.int64)
        self._lodged_kept = np.array([made_at(b[2])[1] for b in base.lodged], np.int64)
        self._lodged_bytes = np.array([b[3] for b in base.lodged], float)
        self._room_share = np.array([value_at(b[4]) for b in base.lodged], np.int64)
        self._room_bytes = np.array([b[5] for b in base.lodged], float)
        held = [*base.arguments, *base.results]
        self._held_share = np.array([value_at(v) for v in held], np.int64)
        self._held_bytes = np.array([v.nbytes for v in held], float)

    def run(self, share: np.ndarray, transfers: Exchanges) -> Estimated:
        """Estimates the cost of a candidate with these shares and these collectives."""
        rows = len(self._kernel_place)
        moved = np.bincount(
            self._traffic_row, self._traffic_bytes * share[self._traffic_share], rows
        )
        busy = np.maximum(self.arithmetic(share[self._kernel_share]), moved / self.rate(moved))
        seconds = self._kernel_times * (self._kernel_fixed + busy)
        done = np.cumsum(np.bincount(self._kernel_place, seconds, self._end + 1))
        compute = float(done[-1])
        communication, total = self._queues(done, transfers)
        peak = self._peak(share, transfers)
        return Estimated(total + self.baseline.overhead, compute, communication, peak)

    def arithmetic(self, kept: np.ndarray) -> np.ndarray:
        """Seconds of arithmetic of each kernel, given the share of it that a device keeps."""
        found = self._kernel_arithmetic * kept
        for products in self._products:
            found[products.rows] += products.seconds(kept[products.rows])
        return found

    def rate(self, moved: np.ndarray) -> np.ndarray | float:
        """Bytes a second of each kernel, which moves so many."""
        device = self.baseline.device
        if device.memory_efficiency.is_flat:
            return device.bandwidth(1.0)
        return device.memory_bandwidth * device.memory_efficiency.at_each(np.maximum(moved, 1.0))

    def _queues(self, done: np.ndarray, transfers: Exchanges) -> tuple[float, float]:
        """Seconds on the wires, and of all."""
        compute = float(done[-1])
        if not transfers:
            return 0.0, compute
        emit, made, first, turns = (
            np.concatenate([at[column] for _, at in transfers]) for column in (0, 1, 2, 4)
        )
        counts = [len(at[0]) for _, at in transfers]
        lasting = np.repeat([t.seconds for t, _ in transfers], counts) * turns
        communication = float(lasting.sum())
        device = self.baseline.device
        if not self.overlap:
            if device.skew:
                met = done[np.minimum(emit, self._end)]
                order = np.lexsort((turns, met))
                again = turns[order]  # In a loop they meet at every turn.
                behind = device.skew * np.diff(met[order], prepend=0.0) / again
                skewed = again * np.minimum(behind, device.most_skew_seconds)
                # They start one after another, as after much work.
                communication += float(skewed.sum()) + device.most_skew_seconds
            return communication, compute + communication
        # Of those that are ready at once the first to be read goes first, in whatever order they
        # were found: an estimate must not depend on what was estimated before.
        order = np.lexsort((lasting, first, made, emit))
        emit, made = emit[order], made[order]
        first = np.minimum(first[order], self._end)
        padded = np.concatenate([[0.0], done])
        kinds = np.repeat(np.arange(len(counts)), counts)[order]
        delay, last = _overlapped(
            emit.tolist(),
            made.tolist(),
            padded[made + 1].tolist(),
            first.tolist(),
            padded[first].tolist(),
            lasting[order].tolist(),
            kinds.tolist(),
            [exchange.levels for exchange, _ in transfers],
            np.argsort(first, kind="stable").tolist(),
            self._end,
        )
        return communication, max(compute + delay, last)

    def _peak(self, share: np.ndarray, transfers: Exchanges) -> float:
        size = self._end + 2
        held = float((self._held_bytes * share[self._held_share]).sum())
        in_use = self._buffer_bytes * share[self._buffer_kept]
        change = np.zeros(size)  # Of no buffers `bincount` makes integers.
        change += np.bincount(self._buffer_first, in_use, size)
        change -= np.bincount(self._buffer_last + 1, in_use, size)
        # What is cut at once is there whole for a moment.
        more = self._buffer_bytes * share[self._buffer_made] - in_use
        if more.any():
            more = np.bincount(self._buffer_first, more, size)
            change += more
            change[1:] -= more[:-1]
        lodged = self._lodged_bytes * share[self._lodged_kept]
        # Of what a device keeps too little of, others find no room in it.
        out = lodged > self._room_bytes * share[self._room_share]
        if out.any():
            change += np.bincount(self._lodged_first[out], lodged[out], size)
            change -= np.bincount(self._lodged_last[out] + 1, lodged[out], size)
        grown = [(t.nbytes, at) for t, at in transfers if t.nbytes]
        if grown:
            sizes = np.repeat([nbytes for nbytes, _ in grown], [len(at[0]) for _, at in grown])
            first = np.minimum(np.concatenate([at[2] for _, at in grown]), self._end)
            last = np.minimum(np.concatenate([at[3] for _, at in grown]), self._end)
            change += np.bincount(first, sizes, size)
            change -= np.bincount(np.maximum(first, last) + 1, sizes, size)
        return held + float(np.cumsum(change).max(initial=0.0)) * self.baseline.packing


def _overlapped(
    emit: list[int],
    made: list[int],
    ready: list[float],
    first: list[int],
    unhindered: list[float],
    lasting: list[float],
    kinds: list[int],
    levels: list[tuple[str, ...]],
    by_reader: list[int],
    end: int,
) -> tuple[float, float]:
    """Runs collectives beside kernels.

    Args:
      emit, made, first: for each the places where it is asked for, after which it can run, and
        before which it has to be done, in the order of the first.
      ready, unhindered: when kernels reach the latter two if they never wait.
      lasting: seconds.
      kinds: which of `levels` it takes the wires of.
      levels: of each kind.
      by_reader: the collectives in the order of `first`.
      end: the place after all kernels.

    Returns:
      By how much kernels are delayed, and when the last wire is free.
    """
    wires, bisect_right = Wires(), bisect.bisect_right
    alone = [
        wires.taken.setdefault(used[0], ([], [])) if len(used) == 1 else None for used in levels
    ]
    finished: list[float] = []
    delay, at, count = 0.0, 0, len(emit)
    delayed_at, delays = [-2], [0.0]
    # The collective whose reader comes next, and where that is.
    j = by_reader[0] if count else 0
    reader = first[j] if count else end
    for i, (place, start, length, kind) in enumerate(zip(emit, ready, lasting, kinds, strict=True)):
        while reader <= place and j < i:
            if (late := finished[j] - unhindered[j]) > delay:
                delay = late
                delayed_at.append(reader)
                delays.append(late)
            at += 1
            j = by_reader[at] if at < count else count
            reader = first[j] if at < count else end
        if delay:
            start += delays[bisect_right(delayed_at, made[i]) - 1]
        wire = alone[kind]
        if wire is None:
            finished.append(wires.send(levels[kind], start, length) + length)
            continue
        # As `Wires.send` does, of one wire; mostly what is sent goes behind all else.
        starts, ends = wire
        if not ends or start > ends[-1]:
            starts.append(start)
            ends.append(start + length)
            finished.append(start + length)
            continue
        if starts[-1] <= start < ends[-1]:
            ends[-1] += length
            finished.append(ends[-1])
            continue
        gap = bisect_right(ends, start)
        while gap < len(starts) and starts[gap] < start + length:
            start = ends[gap]
            gap += 1
        over = start + length
        finished.append(over)
        if gap and ends[gap - 1] == start:
            ends[gap - 1] = over
        else:
            starts.insert(gap, start)
            ends.insert(gap, over)
    while at < count and first[j := by_reader[at]] <= end - 1:
        delay = max(delay, finished[j] - unhindered[j])
        at += 1
    return delay, wires.free()
