"""Cuts a micro-batch's program into segments: a chain forward, and the same chain backward.

The forward pass is cut between its products, where few bytes cross, into *atoms*; neighbouring
atoms are grouped to segments of about equal time. An op of the backward pass belongs to the segment
whose activations and parameters it reads, and never to a later one than the cotangents that it
reads.
"""

from __future__ import annotations

import bisect
import dataclasses
import itertools
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from ...ir.program import Op, Value
from ...rules import traits_of
from ...tactics.manual import path_pattern
from .alignment import aligned
from .dependence import Dependences
from .owners import Groups


@dataclasses.dataclass(frozen=True)
class Segments:
    """The segment of every op of the forward and backward pass.

    Attributes:
      count: how many there are.
      of: the segment of each op of `Dependence.forward` and `Dependence.backward`.
      readers: for each input of the program the segments that compute with it.
      ends: the number past the last atom of each segment.
    """

    count: int
    of: Mapping[Op, int]
    readers: Mapping[Value, tuple[int, ...]]
    ends: tuple[int, ...]

    def grouped(self, ends: Sequence[int]) -> Segments:
        """Neighbouring segments as one; `ends` are the numbers past the last of each group."""

        def group(segment: int) -> int:
            return bisect.bisect_right(ends, segment)

        readers = {v: tuple(sorted({*map(group, one)})) for v, one in self.readers.items()}
        of = {op: group(k) for op, k in self.of.items()}
        return Segments(len(ends), of, readers, tuple(ends))


def cut(
    dependence: Dependences,
    count: int,
    seconds: Callable[[], Mapping[Op, float]] | Sequence[int],
    cuts: Sequence[str] = (),
) -> Segments:
    """Cuts a step into segments of about equal time, where little crosses.

    Args:
      dependence: of the step.
      count: how many segments.
      seconds: tells how long each op takes, others take none; or `ends` of the same cut before.
      cuts: as of `Pipeline`, instead of equal times.

    Raises:
      ValueError: there are fewer products to cut between than segments, or none at a cut.
    """
    atoms, crossing = _atoms(dependence)
    if count > atoms.count:
        raise ValueError(
            f"the pipeline has {count} segments, but the step can be cut into {atoms.count} at "
            "most, each with a product of its own; use fewer stages, or a deeper network"
        )
    if count < 1:
        raise ValueError(f"the pipeline has {count} segments; it needs at least one")
    if not callable(seconds):
        return atoms.grouped(seconds)
    if cuts:
        return atoms.grouped(_named(dependence, atoms, cuts))
    times, known = np.zeros(atoms.count), seconds()
    for op, segment in atoms.of.items():
        times[segment] += known.get(op, 0.0)
    return atoms.grouped(balanced(times, crossing, count))


def _named(dependence: Dependences, atoms: Segments, cuts: Sequence[str]) -> list[int]:
    """The number past the last atom of each segment, where cuts are named.

    Raises:
      ValueError: no product computes with a parameter of that path, or not behind the last cut.
    """
    ends: list[int] = []
    for path in cuts:
        pattern = path_pattern(path)
        wanted = {v for v in dependence.inputs if pattern.fullmatch(v.path)}
        found = [
            atoms.of[op]
            for op in filter(_is_product, dependence.forward)
            if not wanted.isdisjoint(_read(dependence, op))
        ]
        if not found:
            raise ValueError(
                f"the pipeline is cut at {path!r}, and no product of the step computes with a "
                "parameter of that path; paths are as in 'state/params/layer_2/**'"
            )
        if min(found) <= (ends[-1] if ends else 0):
            raise ValueError(
                f"the pipeline is cut at {path!r}, where nothing stands before it, or the last cut "
                "is behind it; name cuts in the order of the forward pass"
            )
        ends.append(min(found))
    return [*ends, atoms.count]


def _read(dependence: Dependences, op: Op) -> list[Value]:
    """The values that an op reads, and those that they are computed from in no segment."""
    return [*op.inputs, *(v for o in dependence.closure(op.inputs) for v in o.inputs)]


def balanced(times: np.ndarray, crossing: np.ndarray, count: int) -> list[int]:
    """Groups of neighbouring atoms, whose slowest one is as quick as can be.

    Args:
      times: seconds [atoms].
      crossing: bytes that cross behind each atom [atoms].
      count: how many groups, at most the number of atoms.

    Returns:
      The number past the last atom of each group. Groups that are within a twentieth of the best
      are taken to be alike, and few bytes cross between those returned.
    """
    atoms = len(times)
    before = np.concatenate([[0.0], np.cumsum(times)])

    def slowest_of_best() -> float:
        best = before[1:].copy()
        for groups in range(1, count):
            best = np.array(
                [
                    min(
                        (max(best[j - 1], before[i + 1] - before[j]) for j in range(groups, i + 1)),
                        default=np.inf,
                    )
                    for i in range(atoms)
                ]
            )
        return float(best[-1])

    limit = slowest_of_best() * 1.05 + 1e-30
    # Least bytes among the groups within the limit.
    least = np.where(before[1:] <= limit, 0.0, np.inf)
    chosen: list[np.ndarray] = []
    for groups in range(1, count):
        following, source = np.full(atoms, np.inf), np.zeros(atoms, int)
        for i in range(groups, atoms):
            for j in range(groups, i + 1):
                bytes_ = least[j - 1] + crossing[j - 1]
                if before[i + 1] - before[j] <= limit and bytes_ < following[i]:
                    following[i], source[i] = bytes_, j
        least = following
        chosen.append(source)
    ends, last = [atoms], atoms - 1
    for source in reversed(chosen):
        start = int(source[last])
        ends.append(start)
        last = start - 1
    return ends[::-1]


def _atoms(dependence: Dependences) -> tuple[Segments, np.ndarray]:
    """The finest segments, each with a product; and the bytes that cross behind each, or are read
    on both sides.
    """
    forward, places = aligned(dependence, {op for op in dependence.forward if _is_product(op)})
    ends, crossing = _cuts(forward, places)
    of = {op: bisect.bisect_right(ends, i) for i, op in enumerate(forward)}
    uses = _forward_uses(dependence, of)
    count = len(ends) + 1
    of.update(_backward(dependence, of, uses, count))
    inputs = dependence.inputs
    readers = {value: tuple(sorted(uses.get(value, ()))) for value in inputs}
    for value, segments in readers.items():
        # Parameters that are read on both sides would lie on both, and their gradients cross.
        if segments and value in dependence.trained:
            for end in range(segments[0], segments[-1]):
                crossing[end] += value.nbytes
    return Segments(count, of, readers, tuple(range(1, count + 1))), np.array([*crossing, 0.0])


def _cuts(forward: Sequence[Op], places: Mapping[Op, int]) -> tuple[list[int], list[float]]:
    """Positions in the forward pass, one between every two products of different places, and the
    bytes that cross them.

    Of positions that the same bytes cross, the last one is taken: what is added to a product or
    applied to it stays with it.
    """
    heavy = [i for i, op in enumerate(forward) if _is_product(op)]
    made = {v: i for i, op in enumerate(forward) for v in op.outputs}
    last: dict[Value, int] = {}
    for i, op in enumerate(forward):
        for value in op.inputs:
            if value in made:
                last[value] = i
    held = np.zeros(len(forward) + 1)
    for value, until in last.items():
        held[made[value]] += value.nbytes
        held[until] -= value.nbytes
    held = np.cumsum(held)
    ends, crossing = [], []
    for first, following in itertools.pairwise(heavy):
        if places[forward[first]] == places[forward[following]]:
            continue
        span = held[first:following]
        at = first + len(span) - 1 - int(np.argmin(span[::-1]))
        ends.append(at + 1)
        crossing.append(float(held[at]))
    return ends, crossing


def _is_product(op: Op) -> bool:
    inner = [op, *(o for region in op.regions for o in region.walk())]
    return any(traits_of(o.name).flops in ("matmul", "convolution") for o in inner)


def _forward_uses(dependence: Dependences, of: Mapping[Op, int]) -> dict[Value, set[int]]:
    """For each value the segments of the forward pass that make it or compute with it."""
    uses: dict[Value, set[int]] = {}
    for op, segment in of.items():
        read = list(op.inputs)
        for other in dependence.closure(op.inputs):
            read += (*other.inputs, *other.outputs)
        for value in (*read, *op.outputs):
            if value.data is None:
                uses.setdefault(value, set()).add(segment)
    return uses


def _backward(
    dependence: Dependences, of: Mapping[Op, int], uses: Mapping[Value, set[int]], count: int
) -> dict[Op, int]:
    """The segment of each op of the backward pass.

    An op stands no later than the cotangents that it reads. Within that bound it stands with the
    activations and parameters that it reads; if it reads none, with its readers.
    """
    ops = dependence.backward
    made: dict[Value, int] = {}
    found: dict[Op, int] = {}
    free: set[Op] = set()
    for op in ops:
        bound = min((made[v] for v in op.inputs if v in made), default=count - 1)
        kept = [uses[v] for v in op.inputs if v not in made and v in uses and _decides(v)]
        natural = set.intersection(*kept) if kept else set()
        within = [k for k in natural if k <= bound]
        if within:
            found[op] = max(within)
        elif kept:
            found[op] = min(bound, max(min(one) for one in kept))
        else:
            found[op] = bound
            free.add(op)
        made.update(dict.fromkeys(op.outputs, found[op]))

    groups = Groups(dependence)
    homes = groups.segments(uses)
    gradients = {op.inputs[0]: homes(op.outputs[0]) for op in dependence.totals}
    reads: dict[Value, list[Op]] = {}
    for op in ops:
        for value in op.inputs:
            reads.setdefault(value, []).append(op)
    for op in reversed(ops):
        readers = [found[o] for v in op.outputs for o in reads.get(v, ())]
        ends = [gradients[v] for v in op.outputs if len(gradients.get(v, ())) == 1]
        if readers and op in free:
            found[op] = min(found[op], max(readers))
        elif not readers and ends:
            found[op] = min(found[op], max(one for (one,) in ends))
    return found


def _decides(value: Value) -> bool:
    """True if an op belongs where this value is: scalars are too small to decide."""
    return bool(value.ndim)
