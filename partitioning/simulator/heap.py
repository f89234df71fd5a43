"""Packs buffers that are in use at different times into a heap."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from .graph import ArrayNode

_PACKED = 3000  # how many temporaries are packed exactly; smaller ones are summed


@dataclasses.dataclass
class Buffer:
    """A piece of the heap and when it is in use.

    Attributes:
      nbytes: its size.
      spans: (first, last) schedule positions, inclusive.
      owner: the node that it holds first.
      offset: place in the heap, once packed.
    """

    nbytes: int
    spans: list[tuple[int, int]]
    owner: ArrayNode
    offset: int = 0

    @property
    def start(self) -> int:
        """The first position at which it is in use."""
        return min(first for first, _ in self.spans)

    @property
    def end(self) -> int:
        """The last position at which it is in use."""
        return max(last for _, last in self.spans)


class Window(NamedTuple):
    """A buffer outside of the heap while it is not in use.

    Attributes:
      nbytes: its size.
      free: the first position at which it is not in use.
      used: the first position at which it is in use again.
      owner: a donated argument, or a result.
    """

    nbytes: int
    free: int
    used: int
    owner: ArrayNode


def reuse(
    temporaries: list[Buffer], windows: list[Window]
) -> tuple[list[Buffer], list[tuple[Buffer, Window]]]:
    """Moves temporaries into result and donated buffers while those are not in use, largest first.

    Args:
      temporaries: candidates.
      windows: those buffers.

    Returns:
      The temporaries that found no place, and the others, each with where it lies.
    """
    if not windows:
        return temporaries, []
    capacity = 2 * len(windows) + 2 * len(temporaries)
    size, low, high, window = (np.zeros(capacity, np.int64) for _ in range(4))
    count = len(windows)
    ordered = sorted(windows, key=lambda w: w[:3])
    for column, values in zip((size, low, high), zip(*ordered, strict=True), strict=False):
        column[:count] = values
    window[:count] = range(count)
    largest = int(size.max())
    left, lodged = [], []
    for buffer in sorted(temporaries, key=lambda b: (-b.nbytes, b.start)):
        if buffer.nbytes > largest:
            left.append(buffer)
            continue
        start, end = buffer.start, buffer.end
        fits = (size[:count] >= buffer.nbytes) & (low[:count] <= start) & (high[:count] > end)
        (places,) = fits.nonzero()
        if not len(places):
            left.append(buffer)
            continue
        best = places[size[places].argmin()]
        size[count], low[count], high[count] = size[best], end + 1, high[best]
        window[count] = window[best]
        lodged.append((buffer, ordered[window[best]]))
        high[best] = start
        count += 1
    return left, lodged


def pack(buffers: list[Buffer]) -> int:
    """Size of a heap that holds the buffers: the better of largest first and of longest-lived
    first, as XLA's heap simulator places them. How long one lives is counted in buffers that are
    taken and given back meanwhile.
    """
    spans = _counted(buffers)
    orders: tuple[Callable[[_Span], tuple[int, int, int]], ...] = (
        lambda s: (-s[0].nbytes, s[1] - s[2], s[1]),
        lambda s: (s[1] - s[2], -s[0].nbytes, s[1]),
    )
    bound = peak_of(buffers)[0]
    best, offsets = math.inf, []
    for key in orders:
        heap = _place(sorted(spans, key=key))
        if heap < best:
            best, offsets = heap, [b.offset for b in buffers]
        if best <= 1.005 * bound:
            break
    for buffer, offset in zip(buffers, offsets, strict=True):
        buffer.offset = offset
    return int(best) if buffers else 0


#: A buffer, and when it is taken and given back: how often one was before.
_Span = tuple[Buffer, int, int]


def _counted(buffers: list[Buffer]) -> list[_Span]:
    """The buffers with their times: at each position results are taken before operands go."""
    taken = [(b.start, 0, i) for i, b in enumerate(buffers)]
    back = [(b.end, 1, i) for i, b in enumerate(buffers)]
    times = [[0, 0] for _ in buffers]
    for time, (_, is_back, i) in enumerate(sorted(taken + back)):
        times[i][is_back] = time
    return [(b, start, end) for b, (start, end) in zip(buffers, times, strict=True)]


def _place(ordered: list[_Span]) -> int:
    """Places each buffer in turn in the smallest hole that fits; returns the heap's size."""
    exact, rest = ordered[:_PACKED], ordered[_PACKED:]
    count = len(exact)
    start = np.zeros(count, np.int64)
    end = np.zeros(count, np.int64)
    offset = np.zeros(count, np.int64)
    top = np.zeros(count, np.int64)
    heap = 0
    for i, (buffer, first, last) in enumerate(exact):
        (clash,) = ((start[:i] <= last) & (end[:i] >= first)).nonzero()
        place = 0
        if len(clash):
            lows = offset[clash]
            by = lows.argsort(kind="stable")
            gaps, tops = lows[by], np.maximum.accumulate(top[clash][by])
            gaps[1:] -= tops[:-1]
            (fits,) = (gaps >= buffer.nbytes).nonzero()
            if not len(fits):
                place = int(tops[-1])
            elif hole := int(fits[gaps[fits].argmin()]):
                place = int(tops[hole - 1])
        start[i], end[i], offset[i], top[i] = first, last, place, place + buffer.nbytes
        buffer.offset = place
        heap = max(heap, place + buffer.nbytes)
    if rest:
        heap += peak_of([buffer for buffer, _, _ in rest])[0]
    return heap


def peak_of(buffers: Sequence[Buffer]) -> tuple[int, int]:
    """(bytes, position) of the largest sum of buffers in use at once."""
    if not buffers:
        return 0, 0
    last = max(b.end for b in buffers) + 2
    change = np.zeros(last, np.int64)
    for b in buffers:
        for first, stop in b.spans:
            change[first] += b.nbytes
            change[stop + 1] -= b.nbytes
    used = np.cumsum(change)
    at = int(np.argmax(used))
    return int(used[at]), at
