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
from collections.abc import Callable, Collection, Mapping, Sequence

import numpy as np

from ...ir.program import Op, Value
from ...rules import traits_of
from ...tactics.manual import path_pattern
from .alignment import aligned
from .chains import ForwardChains
from .dependence import Dependences, walk
from .owners import Groups
from .spread import SpreadWork


@dataclasses.dataclass(frozen=True)
class Segments:
    """The segment of every op of the forward and backward pass.

    Attributes:
      count: how many there are.
      of: the segment of each op of `Dependence.forward` and `Dependence.backward`.
      readers: for each input of the program the segments that compute with it.
      ends: the number past the last atom of each segment; of several chains, of each stage.
      forward_only: the segments that are not differentiated.
      whole: the segments that run on all devices of the axis at once.
    """

    count: int
    of: Mapping[Op, int]
    readers: Mapping[Value, tuple[int, ...]]
    ends: tuple[int, ...]
    forward_only: Collection[int] = ()
    whole: tuple[int, ...] = ()

    def grouped(self, ends: Sequence[int]) -> Segments:
        """Neighbouring segments as one; `ends` are the numbers past the last of each group."""

        def group(segment: int) -> int:
            return bisect.bisect_right(ends, segment)

        readers = {v: tuple(sorted({*map(group, one)})) for v, one in self.readers.items()}
        of = {op: group(k) for op, k in self.of.items()}
        whole = tuple(map(group, self.whole))
        return Segments(len(ends), of, readers, tuple(ends), whole=whole)

    def apart(self, chains: ForwardChains) -> Segments:
        """Each segment as one of every chain: that of stage s of chain c is c * stages + s."""
        stages, last = self.count, chains.count - 1
        of = {op: chains.of.get(op, last) * stages + k for op, k in self.of.items()}
        return Segments(stages * chains.count, of, {}, self.ends, range(stages * last))


def cut(
    dependence: Dependences,
    count: int,
    seconds: Callable[[], Mapping[Op, float]] | Sequence[int],
    cuts: Sequence[str] = (),
    chains: ForwardChains | None = None,
    spread: SpreadWork | None = None,
) -> Segments:
    """Cuts a step into segments of about equal time, where little crosses.

    Args:
      dependence: of the step.
      count: how many segments; of several chains, how many of each. Those that run on all devices
        are further ones.
      seconds: tells how long each op takes, others take none; or `ends` of the same cut before.
      cuts: as of `Pipeline`, instead of equal times.
      chains: the forward passes whose segments are apart; by default all are one chain.
      spread: the work of all devices at once, which is a segment of its own wherever it stands.

    Raises:
      ValueError: there are fewer products to cut between than segments, or none at a cut.
    """
    if chains is not None and chains.count > 1:
        return _stages(dependence, count, seconds, cuts, chains, None).apart(chains)
    return _stages(dependence, count, seconds, cuts, None, spread)


def _stages(
    dependence: Dependences,
    count: int,
    seconds: Callable[[], Mapping[Op, float]] | Sequence[int],
    cuts: Sequence[str],
    chains: ForwardChains | None,
    spread: SpreadWork | None,
) -> Segments:
    """Cuts a program into segments, of which each has a part of every chain."""
    atoms, crossing = _atoms(dependence, chains, spread)
    apart = atoms.count - len(atoms.whole)
    if spread is not None and apart < 1:
        raise ValueError(
            f"another tactic tiles every product over axis {spread.axis!r}; stages need an axis of "
            "their own, or products that it leaves alone"
        )
    if count > apart:
        raise ValueError(
            f"the pipeline has {count} segments, but the step can be cut into {apart} at "
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
    return atoms.grouped(_balanced_between(times, crossing, count, atoms.whole))


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
            for op in filter(is_product, dependence.forward)
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


def _balanced_between(
    times: np.ndarray, crossing: np.ndarray, count: int, whole: Collection[int]
) -> list[int]:
    """Groups of neighbouring atoms, but for those that are groups of their own."""
    atoms = range(len(times))
    runs = [[*run] for alone, run in itertools.groupby(atoms, whole.__contains__) if not alone]
    share = [1] * len(runs)
    for _ in range(count - len(runs)):
        # The next segment is for the run with the slowest ones, of those that can be cut further.
        open_ = [i for i, run in enumerate(runs) if share[i] < len(run)]
        share[max(open_, key=lambda i: times[runs[i]].sum() / share[i])] += 1
    ends = [atom + 1 for atom in whole]
    for run, groups in zip(runs, share, strict=True):
        ends += [run[0] + end for end in balanced(times[run], crossing[run], groups)]
    return sorted(ends)


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


def _atoms(
    dependence: Dependences, chains: ForwardChains | None, spread: SpreadWork | None
) -> tuple[Segments, np.ndarray]:
    """The finest segments, each with a product; and the bytes that cross behind each, or are read
    on both sides.
    """
    heavy = {op for op in dependence.forward if is_product(op)}
    forward, places = aligned(dependence, heavy, chains)
    together = set() if spread is None else spread.ops
    ends, crossing = _cuts(forward, places, together)
    of = {op: bisect.bisect_right(ends, i) for i, op in enumerate(forward)}
    whole = sorted({of[op] for op in forward if op in together})
    uses = _forward_uses(dependence, of)
    count = len(ends) + 1
    of.update(_backward(dependence, of, uses, count, together, whole))
    inputs = dependence.inputs
    readers = {value: tuple(sorted(uses.get(value, ()))) for value in inputs}
    for value, segments in readers.items():
        # Parameters that are read on both sides would lie on both, and their gradients cross.
        if segments and value in dependence.trained:
            for end in range(segments[0], segments[-1]):
                crossing[end] += value.nbytes
    atoms = Segments(count, of, readers, tuple(range(1, count + 1)), whole=tuple(whole))
    return atoms, np.array([*crossing, 0.0])


def _cuts(
    forward: Sequence[Op], places: Mapping[Op, int], together: Collection[Op]
) -> tuple[list[int], list[float]]:
    """Positions in the forward pass, one between every two products of different places, and the
    bytes that cross them. Ops that run on all devices `together` stand apart from others.

    Of positions that the same bytes cross, the last one is taken: what is added to a product or
    applied to it stays with it.
    """
    heavy = [i for i, op in enumerate(forward) if is_product(op) or op in together]
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
        one, other = forward[first], forward[following]
        if one in together and other in together:
            continue
        if places[one] == places[other] and (one in together) == (other in together):
            continue
        span = held[first:following]
        at = first + len(span) - 1 - int(np.argmin(span[::-1]))
        ends.append(at + 1)
        crossing.append(float(held[at]))
    return ends, crossing


def is_product(op: Op) -> bool:
    """True if an op, or one inside of it, is a product of matrices or a convolution."""
    return any(traits_of(o.name).flops in ("matmul", "convolution") for o in walk(op))


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
    dependence: Dependences,
    of: Mapping[Op, int],
    uses: Mapping[Value, set[int]],
    count: int,
    together: Collection[Op],
    whole: Sequence[int],
) -> dict[Op, int]:
    """The segment of each op of the backward pass.

    An op stands no later than the cotangents that it reads. Within that bound it stands with the
    activations and parameters that it reads; if it reads none, with its readers. Ops that run on
    all devices `together` stand in the segments `whole`.
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
        if op in together:
            within = [k for k in within if k in whole] or [k for k in whole if k <= bound]
            within = within or [bound]
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
        if op in together:
            continue
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
