"""Costs of the stages of a chain by the simulator: seconds and bytes on one device."""

from __future__ import annotations

import bisect
import collections
from collections.abc import Collection, Iterator

import numpy as np

from ..ir.program import Op, Program, Value
from ..simulator.buffers import Assignment, assign
from ..simulator.device import Device
from ..simulator.fusion import Kernel
from ..simulator.graph import CONSTANT, ELEMENT, PARAM, ArrayNode, build
from ..simulator.memory import donation_pairs
from ..simulator.timing import Queues, kernel_work, work_seconds
from .cuts import Chain
from .rotor import Stage


class Costs:
    """The kernels and buffers of a program on a device, found by its ops.

    Args:
      program: the local program.
      device: the device.
      donated: names of donated arguments.
    """

    def __init__(self, program: Program, device: Device, donated: Collection[str]):
        self.device = device
        graph = build(program, device.kind)
        whole = assign(graph, donation_pairs(program, donated), kind=device.kind)
        self._queues = Queues(device, {}, overlap=True)
        self._where: dict[Op, Assignment] = {}
        for assignment in _all(whole):
            for kernel in assignment.schedule:
                if kernel.root.op is not None:
                    self._where.setdefault(kernel.root.op, assignment)

    def stages(self, chain: Chain) -> list[Stage]:
        """The stages of a chain with their costs."""
        ops = chain.program.ops
        place = {op: i for i, op in enumerate(ops)}
        held = collections.Counter(
            id(self._where[op]) for op in ops[chain.start : chain.end] if op in self._where
        )
        if not held:
            return []
        ((most, _),) = held.most_common(1)
        assignment = next(a for a in self._where.values() if id(a) == most)
        at = _places(assignment, place)
        count = len(chain.ends)
        seconds, forward, backward = np.zeros(count), np.zeros(count), np.zeros(count)
        saved, in_use, kept = self._memory(chain, assignment, at, place)
        turned = _turns(chain)
        for position, kernel in enumerate(assignment.schedule):
            i = at[position]
            beside = in_use[position] - kept[position]
            if chain.start <= i < chain.turn:
                k = bisect.bisect_right(chain.ends, i)
                forward[k] = max(forward[k], beside)
                seconds[k] += self._seconds(kernel, assignment)
            elif chain.turn <= i < chain.end:
                k = turned[i - chain.turn]
                backward[k] = max(backward[k], beside)
        return [
            Stage(
                float(seconds[k]),
                float(saved[k]),
                float(_nbytes(chain.handed[k])),
                float(forward[k]),
                float(backward[k]),
                chain.closed[k],
            )
            for k in range(count)
        ]

    def _seconds(self, kernel: Kernel, assignment: Assignment) -> float:
        if kernel.root.kind in (PARAM, CONSTANT, ELEMENT):
            return 0.0
        if kernel in assignment.inner:
            inner = self._queues.bodies(kernel, assignment).seconds
            return inner.compute + inner.exposed
        return work_seconds(kernel_work(kernel), self.device)

    def _memory(
        self, chain: Chain, assignment: Assignment, at: list[int], place: dict[Op, int]
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Bytes that each stage saves; bytes in use at each position, and those saved of them."""
        size = len(assignment.schedule)
        saved = np.zeros(len(chain.ends))
        in_use, kept = np.zeros(size + 1), np.zeros(size + 1)
        known: set[Value] = set()
        for buffer in assignment.temporaries:
            value = _value(buffer.owner)
            made = place.get(buffer.owner.op, -1) if buffer.owner.op is not None else -1
            stage = bisect.bisect_right(chain.ends, made)
            for first, last in buffer.spans:
                last = min(last, size - 1)
                in_use[first] += buffer.nbytes
                in_use[last + 1] -= buffer.nbytes
                if not (chain.start <= made < chain.turn <= at[last] < chain.end):
                    continue
                if value in chain.fixed:
                    continue
                saved[stage] += buffer.nbytes
                kept[first] += buffer.nbytes
                kept[last + 1] -= buffer.nbytes
                if value is not None:
                    known.add(value)
        for k, handed in enumerate(chain.handed):
            # What a stage hands on is kept with the rest, also where no backward pass reads it.
            fresh = [v for v in handed if chain.stage[v] == k and v not in known]
            saved[k] += _nbytes([v for v in fresh if v not in chain.saved[k]])
        return saved, np.cumsum(in_use)[:size], np.cumsum(kept)[:size]


def _all(assignment: Assignment) -> Iterator[Assignment]:
    yield assignment
    for bodies in assignment.inner.values():
        for body in bodies:
            yield from _all(body)


def _places(assignment: Assignment, place: dict[Op, int]) -> list[int]:
    """The place of each kernel's op in the program; kernels without an op take the place before."""
    found, last = [], 0
    for kernel in assignment.schedule:
        root = kernel.root
        if root.kind not in (PARAM, CONSTANT) and root.op is not None:
            last = place.get(root.op, last)
        found.append(last)
    return found


def _turns(chain: Chain) -> list[int]:
    """The stage of each op of the backward pass: the earliest stage read so far."""
    stage = {v: k for k, values in enumerate(chain.saved) for v in values}
    found, now = [], len(chain.ends) - 1
    for op in chain.program.ops[chain.turn : chain.end]:
        now = min([now, *(stage[v] for v in op.inputs if v in stage)])
        found.append(now)
    return found


def _value(node: ArrayNode) -> Value | None:
    """The value that a node holds, as far as is known."""
    if node.op is None or not node.op.outputs:
        return None
    at = node.data if node.kind == ELEMENT and isinstance(node.data, int) else 0
    return node.op.outputs[min(at, len(node.op.outputs) - 1)]


def _nbytes(values: Collection[Value]) -> int:
    return sum(v.nbytes for v in values)
