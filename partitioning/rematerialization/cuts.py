"""Finds the chains of a program: a forward pass, and the backward pass that reads its values.

A chain is cut into stages at places that few bytes cross. No names and no source lines are read,
except to tell the ops that differentiation made.
"""

from __future__ import annotations

import bisect
import dataclasses
from collections.abc import Iterable, Iterator, Mapping

import numpy as np

from ..ir.program import COLLECTIVES, Op, Program, Value
from ..rules import traits_of

#: Among so many cuts the narrowest come first; more only where they are about as narrow.
_CUTS, _MOST_CUTS = 32, 96
#: Values for the backward pass that are a smaller share of all of it begin no chain.
_SIGNIFICANT = 1e-3


@dataclasses.dataclass
class Chain:
    """One forward pass and the backward pass that follows it, in a straight line of ops.

    Attributes:
      program: the line.
      start, turn, end: the forward pass is ops[start:turn], the backward pass, with all that stands
        between and behind, ops[turn:end].
      ends: for each stage the place past its last op.
      saved: for each stage the values it makes that ops[turn:end] read and that may be made again.
      handed: for each stage the values it hands on to later ones, itself or from before.
      stage: the stage of every value that the forward pass makes.
      closed: for each stage, True if the values it hands on need an exchange between devices and
        nothing else keeps its result.
      fixed: values that are made once: by collectives and by calls of the host, pending sums,
        values that stages far apart share, and values read behind the chain.
    """

    program: Program
    start: int
    turn: int
    end: int
    ends: tuple[int, ...] = ()
    saved: tuple[tuple[Value, ...], ...] = ()
    handed: tuple[tuple[Value, ...], ...] = ()
    closed: tuple[bool, ...] = ()
    stage: dict[Value, int] = dataclasses.field(default_factory=dict)
    fixed: set[Value] = dataclasses.field(default_factory=set)


def runs_once(op: Op) -> bool:
    """True if an op, or one inside it, is never to be run again."""
    if op.name in COLLECTIVES or op.effects or traits_of(op.name).host:
        return True
    return any(runs_once(inner) for region in op.regions for inner in region.ops)


def chains(program: Program) -> Iterator[Chain]:
    """The chains of a program and of its regions, each a straight line of its own."""
    found = [_cut(Chain(program, *span)) for span in _spans(program)]
    yield from (chain for chain in found if len(chain.ends) > 1)
    for op in program.ops:
        for region in op.regions:
            yield from chains(region)


def _spans(program: Program) -> Iterator[tuple[int, int, int]]:
    """(start, turn, end) of the chains."""
    backward = [op.backward for op in program.ops]
    if not any(backward) or all(backward):
        return
    made: dict[Value, int] = {}
    for i, op in enumerate(program.ops):
        if backward[i]:
            continue
        made.update(dict.fromkeys(op.outputs, i))
    nbytes: dict[int, int] = {}
    for i, op in enumerate(program.ops):
        if backward[i]:
            for value in dict.fromkeys(op.inputs):
                if value in made and made[value] < i:
                    nbytes[made[value]] = nbytes.get(made[value], 0) + value.nbytes
    least = _SIGNIFICANT * sum(nbytes.values())
    start, turn = 0, -1
    for i in range(len(program.ops)):
        if turn < 0:
            turn = i if backward[i] else -1
        elif not backward[i] and nbytes.get(i, 0) > least:
            yield start, turn, i
            start, turn = i, -1
    if turn > start:
        yield start, turn, len(program.ops)


def _cut(chain: Chain) -> Chain:
    """Fills in the stages of a chain."""
    ops = chain.program.ops
    start, turn = chain.start, chain.turn
    made: dict[Value, int] = {}
    root: dict[Value, Value] = {}
    read: dict[Value, int] = {}  # where the forward pass reads it last
    for i in range(start, turn):
        op = ops[i]
        for value in op.inputs:
            if value in made:
                read[value] = i
        for value in op.outputs:
            made[value] = i
            viewed = traits_of(op.name).view == "always" and len(op.inputs) == 1
            source = op.inputs[0] if viewed else value
            root[value] = root.get(source, source)
        if traits_of(op.name).source and not any(v in made for v in op.inputs):
            for value in op.outputs:
                read.pop(value, None)
                root[value] = _NOTHING
    late: set[Value] = set()
    for op in ops[turn : chain.end]:
        late.update(v for v in op.inputs if v in made)
    behind = {v for v in chain.program.outputs if v in made}
    for op in ops[chain.end :]:
        behind.update(v for v in op.inputs if v in made)

    chain.ends = (*_places(chain, made, root, read, late), turn)
    stages = len(chain.ends)
    chain.stage = {v: bisect.bisect_right(chain.ends, i) for v, i in made.items()}
    handed: list[list[Value]] = [[] for _ in range(stages)]
    far = max(3, stages // 4)
    chain.fixed = {v for v in made if v.partial is not None or v in behind}
    chain.fixed |= {v for i in range(start, turn) if runs_once(ops[i]) for v in ops[i].outputs}
    for value, last in read.items():
        if root[value] is _NOTHING or value in chain.fixed:
            continue
        first, until = chain.stage[value], bisect.bisect_right(chain.ends, last)
        if until - first > far:
            chain.fixed.add(value)
            continue
        for k in range(first, until):
            handed[k].append(value)
    saved: list[list[Value]] = [[] for _ in range(stages)]
    for value in made:
        if value in late and value not in chain.fixed:
            saved[chain.stage[value]].append(value)
    chain.saved, chain.handed = tuple(map(tuple, saved)), tuple(map(tuple, handed))
    first, closed = start, []
    for end, values in zip(chain.ends, chain.handed, strict=True):
        closed.append(_needs_exchange(ops[first:end], values, made, late))
        first = end
    chain.closed = tuple(closed)
    return chain


def _needs_exchange(
    ops: list[Op], values: Iterable[Value], made: Mapping[Value, int], late: set[Value]
) -> bool:
    """True if making values again takes the result of a collective that is not kept anyway."""
    needed = set(values)
    for op in reversed(ops):
        if needed.isdisjoint(op.outputs):
            continue
        if not runs_once(op):
            needed.update(op.inputs)
            continue
        # Parameters that are gathered are no result of the chain's.
        ours = op.name != "all_gather" or op.inputs[0] in made
        if ours and not late.issuperset(needed.intersection(op.outputs)):
            return True
    return False


#: Stands for the array behind what is made from nothing.
_NOTHING = Value((), np.dtype("float32"))


def _places(
    chain: Chain,
    made: dict[Value, int],
    root: dict[Value, Value],
    read: dict[Value, int],
    late: set[Value],
) -> list[int]:
    """The places to cut: past the ops behind which the forward pass holds least."""
    start, turn = chain.start, chain.turn
    spans: dict[Value, list[int]] = {}
    owed: list[tuple[int, int]] = []
    for value, last in read.items():
        array = root[value]
        if array is _NOTHING:
            continue
        if value.partial is not None:
            owed.append((made[value], last))
        if array not in made:  # a view of what was there before
            continue
        span = spans.setdefault(array, [made[array], last])
        span[1] = max(span[1], last)
    held = np.zeros(turn - start + 1)
    for array, (first, last) in spans.items():
        held[first - start] += array.nbytes
        held[last - start] -= array.nbytes
    held = np.cumsum(held)[: turn - start]
    for first, last in owed:  # A sum that is owed is not handed on.
        held[first - start : last - start] = np.inf
    weight = np.zeros(turn - start)
    for value in late:
        if root[value] is value:
            weight[made[value] - start] += value.nbytes
    weight = np.cumsum(weight) + 1e-9 * np.arange(turn - start)
    apart = weight[-1] / 200
    places: list[int] = []
    most = np.inf
    for i in np.argsort(held, kind="stable").tolist():
        if held[i] > most or i == turn - start - 1 or weight[i] < apart:
            continue
        at = bisect.bisect_left(places, i)
        before = weight[places[at - 1]] if at else 0.0
        after = weight[places[at]] if at < len(places) else weight[-1]
        if weight[i] - before < apart or after - weight[i] < apart:
            continue
        places.insert(at, i)
        if len(places) == _CUTS:
            most = 1.01 * held[i]
    while len(places) > _MOST_CUTS:
        marks = np.array([0.0, *weight[places], weight[-1]])
        del places[int(np.argmin(marks[2:] - marks[:-2]))]
    return [start + i + 1 for i in places]
