"""The cost of a collective on a topology: the algorithm that runs, message by message.

The alpha-beta model: a phase of an algorithm costs a latency and the bytes of its messages over the
bandwidth of the wire that carries most of them. The algorithm is the one that the device's library
takes for a plain reduction or gather over the whole group:

| library | all_reduce | all_gather | reduce_scatter | all_to_all |
|---|---|---|---|---|
| gloo (CPU) | ring | ring | halving | direct |
| NCCL (GPU) | ring or tree, as it chooses | ring | ring | direct |
| torus (TPU) | rings, level by level | the same | the same | ring |

A ring of n devices takes n - 1 phases (2n - 2 to reduce) in which each sends 1/n of the whole to
its neighbour. It leaves a host once and comes back once, however many of its devices are in the
group: where a host's devices share a card, only groups that run side by side share it. NCCL lays as
many rings as there are cards. Halving exchanges a half, a quarter, ... with partners at distances
1, 2, 4, ..., so that the least crosses between hosts; as this leaves the parts in the bit-reversed
order of the ranks, a last phase puts them right. "Direct" sends every part to its place at once.
Gloo's rings and partners follow the group's ranks, as the axes of the program order them: with an
axis between hosts fastest, a ring leaves its host with every message. NCCL orders them itself.
Where two of gloo's devices send each other whole messages (directly, or around a ring of two), they
take turns: a device announces that it is ready to receive over the connection that it sends by,
behind its own message, so that the later of the two sends later. Of many such exchanges over a wire
about half begin in each direction, and it is busy both ways but for the difference.
Within a calibrated level the measured times count instead.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from .topology import Segment

KINDS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")

#: Each device of a group sends an array to another one.
PERMUTE = "permute"

#: Bytes of a message that lie in the buffers of a connection, and keep no other one waiting
#: (measured: 16 KiB go both ways at once, and of more what is beyond 8 to 12 KiB goes in turns).
_BUFFERED = 1 << 13

#: Kind of device to the library that moves its data.
LIBRARIES = {"cpu": "gloo", "gpu": "nccl", "tpu": "torus"}


@dataclasses.dataclass(frozen=True)
class CollectiveCost:
    """Seconds of one collective, and how it is done."""

    seconds: float
    algorithm: str


class _Phase(NamedTuple):
    """Messages that are under way together.

    Attributes:
      leaving: for each level, the most messages that leave one of its units.
      part: bytes of a message, as a part of the whole.
      times: how often the phase is repeated.
      pieces: how many pieces a message is cut into; one is sent while another arrives.
      in_turns: True if each message is answered by one of its size, which waits for it.
    """

    leaving: tuple[float, ...]
    part: float
    times: int = 1
    pieces: int = 1
    in_turns: bool = False


def bytes_sent(kind: str, nbytes: float, group: int) -> float:
    """Bytes that each device sends in the bandwidth-optimal algorithm.

    Args:
      kind: one of `KINDS`.
      nbytes: of the gathered result, of the tensor to reduce, or of the local operand (all_to_all).
      group: how many devices take part.
    """
    if group <= 1:
        return 0.0
    once = nbytes * (group - 1) / group
    return 2 * once if kind == "all_reduce" else once


def collective_cost(
    kind: str, nbytes: float, segments: Sequence[Segment], library: str = "nccl"
) -> CollectiveCost:
    """The cost of one collective with the algorithm that the library runs.

    Args:
      kind: one of `KINDS`.
      nbytes: as for `bytes_sent`.
      segments: the segments that the group spans, as `spanned` gives them: in the order that its
        ranks count over them, the fastest first.
      library: one of the values of `LIBRARIES`.

    Raises:
      ValueError: the kind is not one of `KINDS`.
    """
    if kind not in KINDS:
        raise ValueError(f"unknown collective {kind!r}; known: {', '.join(KINDS)}")
    ranks = _ranks(segments)
    segments = _joined(segments)
    if not segments:
        return CollectiveCost(0.0, "none")
    if len(segments) == 1:
        seconds = segments[0].level.seconds(kind, nbytes, segments[0].size)
        if seconds is not None:
            return CollectiveCost(seconds, "measured")
    if library == "torus":
        return CollectiveCost(_by_level(kind, nbytes, segments), "rings")
    sizes = tuple(s.size for s in segments)
    channels = library == "nccl"
    phases = _phases(kind, sizes, ranks, channels)
    name = "direct" if kind == "all_to_all" else "ring"
    if kind == "reduce_scatter" and _halves(sizes, channels):
        name = "halving"
    ring = CollectiveCost(_seconds(nbytes, segments, phases, channels), name)
    if kind == "all_reduce" and channels:
        tree = CollectiveCost(_tree(nbytes, segments), "tree")
        return min(ring, tree, key=lambda choice: choice.seconds)
    return ring


def permute_seconds(
    nbytes: float, segments: Sequence[Segment], library: str = "nccl", both_ways: bool = False
) -> float:
    """Seconds until every device of a group has sent an array to its neighbour.

    Args:
      nbytes: of the array.
      segments: that the group spans.
      library: one of the values of `LIBRARIES`.
      both_ways: True if each device sends to the one that it receives from.
    """
    segments = _joined(segments)
    if len(segments) == 1:
        seconds = segments[0].level.seconds(PERMUTE, nbytes, segments[0].size)
        if seconds is not None:
            return seconds
    waits = max(nbytes - _BUFFERED, 0.0) if both_ways and library == "gloo" else 0.0
    return max(
        (
            s.level.latency
            + s.sharing / s.level.bandwidth * (nbytes + waits * (_turns(round(s.sharing)) - 1))
            for s in segments
        ),
        default=0.0,
    )


def _halves(sizes: tuple[int, ...], channels: bool) -> bool:
    """True if a reduce_scatter is done by halving."""
    return not channels and math.prod(sizes).bit_count() == 1


def _phases(
    kind: str, sizes: tuple[int, ...], ranks: tuple[int, ...], channels: bool
) -> Sequence[_Phase]:
    """The messages, phase by phase, between devices that are numbered level by level.

    Args:
      kind: of the collective.
      sizes: of the levels, innermost first.
      ranks: the device of each rank.
      channels: as of `_seconds`.
    """
    if kind == "all_to_all":
        return _direct(sizes, in_turns=not channels)
    if channels:
        return _ring(kind, sizes, tuple(range(len(ranks))), pieces=1)
    if kind == "reduce_scatter" and _halves(sizes, channels):
        return _halving(sizes, ranks)
    # Gloo has two pieces of a message under way: one's latency is hidden by the other.
    return _ring(kind, sizes, ranks, pieces=2)


def _joined(segments: Sequence[Segment]) -> list[Segment]:
    """One segment for each level that is spanned, innermost first."""
    found: dict[str, Segment] = {}
    for segment in segments:
        if segment.size > 1:
            known = found.get(segment.level.name)
            size = segment.size * (known.size if known else 1)
            found[segment.level.name] = dataclasses.replace(segment, size=size)
    return sorted(found.values(), key=lambda s: s.depth)


def _ranks(segments: Sequence[Segment]) -> tuple[int, ...]:
    """The device of each rank of a group, with devices numbered level by level."""
    return _numbered(tuple((s.size, s.depth) for s in segments))


@functools.lru_cache(maxsize=1000)
def _numbered(counted: tuple[tuple[int, int], ...]) -> tuple[int, ...]:
    """Devices in the order of ranks; (size, depth) of what ranks count over, fastest first."""
    by_depth = sorted(range(len(counted)), key=lambda i: counted[i][1])
    devices = np.arange(math.prod(size for size, _ in counted))
    whole = devices.reshape([counted[i][0] for i in reversed(by_depth)])
    dim = {i: len(counted) - 1 - at for at, i in enumerate(by_depth)}
    by_rank = whole.transpose([dim[i] for i in reversed(range(len(counted)))])
    return tuple(by_rank.ravel().tolist())


def wire_bytes(
    kind: str, nbytes: float, segments: Sequence[Segment], library: str = "gloo"
) -> dict[str, float]:
    """Bytes that one wire of each level sends in a ring, for all groups side by side over it.

    Args:
      kind, nbytes, segments: as of `collective_cost`.
      library: "gloo" or "nccl".
    """
    ranks = _ranks(segments)
    segments = _joined(segments)
    phases = _phases(kind, tuple(s.size for s in segments), ranks, library == "nccl")
    sent = dict.fromkeys((s.level.name for s in segments), 0.0)
    for phase in phases:
        members = 1
        for segment, leaving in zip(segments, phase.leaving, strict=True):
            load = leaving / members * segment.sharing
            sent[segment.level.name] += phase.times * phase.part * nbytes * load
            members *= segment.size
    return sent


def _seconds(
    nbytes: float, segments: Sequence[Segment], phases: Sequence[_Phase], channels: bool
) -> float:
    """One phase after the other; in each the slowest wire rules.

    Args:
      nbytes: of the whole.
      segments: the levels of the group, innermost first.
      phases: the messages.
      channels: True if messages are spread over all wires of a unit, however few they are.
    """
    total = 0.0
    for phase in phases:
        slowest, members = 0.0, 1
        for segment, leaving in zip(segments, phase.leaving, strict=True):
            if leaving:
                load = leaving / members * segment.sharing
                load = load if channels else max(load, 1.0)
                level = segment.level
                sent = phase.part * nbytes * load / level.bandwidth
                if phase.in_turns:
                    sent *= _turns(round(load * phase.pieces))
                slowest = max(slowest, sent, level.latency + sent / phase.pieces)
            members *= segment.size
        total += phase.times * slowest
    return total


@functools.lru_cache(maxsize=1000)
def _turns(exchanges: int) -> float:
    """The mean factor by which a wire is busy for longer if exchanges take turns in random order.

    If k of n begin in one direction, it takes the time of 2 max(k, n - k) messages, not n: the mean
    of |2 k - n|, the distance of a random walk, is added.
    """
    n = exchanges
    if n > 1000:
        return 1 + math.sqrt(2 / (math.pi * n))
    return 1 + math.comb(n - 1, (n - 1) // 2) / 2 ** (n - 1)


@functools.lru_cache(maxsize=1000)
def _ring(
    kind: str, sizes: tuple[int, ...], ranks: tuple[int, ...], pieces: int
) -> tuple[_Phase, ...]:
    n = len(ranks)
    times = (n - 1) * (2 if kind == "all_reduce" else 1)
    # A reduction says what it is ready for ahead of its pieces.
    in_turns = n == 2 and pieces > 1 and kind != "all_reduce"
    ring = np.array(ranks)
    return (_Phase(_leaving(sizes, ring, np.roll(ring, -1)), 1 / n, times, pieces, in_turns),)


def _direct(sizes: tuple[int, ...], in_turns: bool) -> list[_Phase]:
    leaving, members = [], 1
    for size in sizes:
        leaving.append(float(members * members * (size - 1)))
        members *= size
    return [_Phase(tuple(leaving), 1 / members, in_turns=in_turns)]


@functools.lru_cache(maxsize=1000)
def _halving(sizes: tuple[int, ...], ranks: tuple[int, ...]) -> tuple[_Phase, ...]:
    """Of a power of two of devices."""
    n = len(ranks)
    devices, numbers = np.array(ranks), np.arange(n)
    phases = []
    distance = 1
    while distance < n:
        leaving = _leaving(sizes, devices, devices[numbers ^ distance])
        phases.append(_Phase(leaving, 1 / (2 * distance)))
        distance *= 2
    reversed_ranks = np.zeros_like(numbers)
    for bit in range(n.bit_length() - 1):
        reversed_ranks = 2 * reversed_ranks + (numbers >> bit) % 2
    phases.append(_Phase(_leaving(sizes, devices, devices[reversed_ranks]), 1 / n))
    return tuple(phases)


def _leaving(sizes: tuple[int, ...], source: np.ndarray, target: np.ndarray) -> tuple[float, ...]:
    """The most messages that leave one unit of each level, where each source sends to a target."""
    found, members = [], 1
    for size in sizes:
        leaves = (source // members != target // members) & (
            source // (members * size) == target // (members * size)
        )
        counts = np.bincount(source[leaves] // members)
        found.append(float(counts.max()) if counts.size else 0.0)
        members *= size
    return tuple(found)


def _tree(nbytes: float, segments: Sequence[Segment]) -> float:
    """Seconds of an all_reduce up and down two trees, with half of the bytes over each."""
    latency, slowest, members = 0.0, 0.0, 1
    for segment in segments:
        latency += 2 * math.ceil(math.log2(segment.size)) * segment.level.latency
        slowest = max(slowest, segment.sharing / members / segment.level.bandwidth)
        members *= segment.size
    return latency + 2 * nbytes * slowest


def _by_level(kind: str, nbytes: float, segments: Sequence[Segment]) -> float:
    """Seconds of rings on the inner level, on the outer ones with the rest, and back to gather."""
    total, left = 0.0, nbytes
    for segment in segments:
        n, level = segment.size, segment.level
        # An all_to_all also pays for its hops.
        hops = max(1.0, n / 4) if kind == "all_to_all" else 1.0
        once = (n - 1) * level.latency + left * (n - 1) / n * hops * segment.sharing / (
            level.bandwidth
        )
        total += 2 * once if kind == "all_reduce" else once
        left = left if kind == "all_to_all" else left / n
    return total
