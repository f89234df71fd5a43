"""Makes all programs that sum over a hierarchy of devices, and checks each for its result.

A step is a reduce-scatter, an all-reduce or an all-gather in groups along some levels. A sum over
hosts of chips may be all-reduced at once, or scattered over the chips of each host, all-reduced
between hosts by chips of one number, and gathered again, so that the wires between hosts carry a
part of it (P2, arXiv 2110.10548). Sizes are few, so that all programs are made and one is chosen.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np


class ReductionStep(NamedTuple):
    """One collective, run by all groups along some levels side by side.

    Attributes:
      kind: "reduce_scatter", "all_reduce" or "all_gather".
      levels: which levels a group spans, the outermost first.
    """

    kind: str
    levels: tuple[int, ...]


#: Steps in order.
ReductionProgram = tuple[ReductionStep, ...]


@functools.lru_cache(maxsize=20)
def reduction_programs(levels: int, most: int = 5) -> tuple[ReductionProgram, ...]:
    """Every program that leaves the sum over all devices on all devices, the shortest first.

    Args:
      levels: how many there are; what a program means does not depend on their sizes.
      most: how many steps a program may have.

    Raises:
      ValueError: no level.
    """
    if levels < 1:
        raise ValueError(f"{levels} levels cannot be reduced over; there must be at least 1")
    found = list(_grow((), frozenset(range(levels)), (), most))
    for program in found:
        if not sums(program, (2,) * levels):
            raise AssertionError(f"{program} does not sum; a bug of the synthesis, not of its user")
    return tuple(sorted(found, key=len))


def _grow(
    done: ReductionProgram, owed: frozenset[int], scattered: tuple[int, ...], most: int
) -> Iterator[ReductionProgram]:
    """All ends of a program.

    Args:
      done: its steps so far.
      owed: the levels not yet summed over.
      scattered: the levels over which an array is scattered, as axes of a dimension, major first.
      most: how many steps there may be.
    """
    if not owed and not scattered:
        yield done
    if len(done) == most:
        return
    for count in range(1, len(owed) + 1):
        for some in itertools.combinations(sorted(owed, reverse=True), count):
            rest = owed.difference(some)
            yield from _grow((*done, ReductionStep("all_reduce", some)), rest, scattered, most)
            step = ReductionStep("reduce_scatter", some)
            yield from _grow((*done, step), rest, scattered + some, most)
    # What is gathered are the minor axes, as everywhere in a local program.
    for first in range(len(scattered)):
        step = ReductionStep("all_gather", scattered[first:])
        yield from _grow((*done, step), owed, scattered[:first], most)


def sums(program: Sequence[ReductionStep], sizes: Sequence[int]) -> bool:
    """True if a program leaves the whole sum, in order, on every device.

    It is run on the chunks that each device holds, in order, with the devices that each chunk sums
    over so far. A step is invalid if it would add an addend twice, or if the members of its group
    do not hold the chunks that it needs.
    """
    count = math.prod(sizes)
    coordinates = [np.unravel_index(d, tuple(sizes)[::-1]) for d in range(count)]
    places = [tuple(int(c) for c in where[::-1]) for where in coordinates]
    # Of each device, chunk by chunk: its number, and who added to it.
    held = [[(chunk, frozenset({d})) for chunk in range(count)] for d in range(count)]
    for kind, levels in program:
        groups: dict[tuple[int, ...], list[int]] = {}
        for d, place in enumerate(places):
            outside = tuple(c for level, c in enumerate(place) if level not in levels)
            groups.setdefault(outside, []).append(d)
        for members in groups.values():
            members.sort(key=lambda d: [places[d][level] for level in levels])
            if kind == "all_gather":
                whole = [piece for d in members for piece in held[d]]
                if len({chunk for chunk, _ in whole}) != len(whole):
                    return False
                for d in members:
                    held[d] = list(whole)
                continue
            chunks = [chunk for chunk, _ in held[members[0]]]
            if any([chunk for chunk, _ in held[d]] != chunks for d in members):
                return False
            total = []
            for at, chunk in enumerate(chunks):
                addends = [held[d][at][1] for d in members]
                union = frozenset().union(*addends)
                if len(union) != sum(map(len, addends)):
                    return False
                total.append((chunk, union))
            if kind == "reduce_scatter" and len(total) % len(members):
                return False
            each = len(total) // len(members) if kind == "reduce_scatter" else 0
            for rank, d in enumerate(members):
                held[d] = total[rank * each : (rank + 1) * each] if each else list(total)
    everyone = frozenset(range(count))
    wanted = [(chunk, everyone) for chunk in range(count)]
    return all(pieces == wanted for pieces in held)


def text_of(program: Sequence[ReductionStep], levels: Sequence[str]) -> str:
    """A program in words: "reduce_scatter(host), all_reduce(network), all_gather(host)"."""
    return ", ".join(f"{kind}({' x '.join(levels[i] for i in on)})" for kind, on in program)
