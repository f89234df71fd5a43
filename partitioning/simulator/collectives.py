"""What a collective costs on a topology: the cheapest of ring, tree, direct and hierarchical.

The alpha-beta model: a step of an algorithm costs a latency and the bytes over the bandwidth that
one device has. Notation: n devices, B bytes (of the whole: the gathered result, the reduced
tensor), alpha latency, beta bandwidth.

With b = (n-1)/n B/beta, the time in which each device sends its share:

| collective | ring | tree | direct |
|---|---|---|---|
| all_gather, reduce_scatter | (n-1) alpha + b | log2(n) alpha + b | alpha + b |
| all_reduce | both, one after the other | 2 log2(n) alpha + 2 B/beta | alpha + n b |
| all_to_all | (n-1) alpha + b | | alpha + b |

"Direct" (every device sends to every other at once) needs a switch, so only GPU levels use it: the
devices of a CPU share its cores and meet one after the other. On a torus an all_to_all also pays
for its hops. Within a level that was calibrated, what was measured counts instead.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

from .topology import Segment

KINDS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")


@dataclasses.dataclass(frozen=True)
class CollectiveCost:
    """Seconds of one collective, and how it would be done."""

    seconds: float
    algorithm: str


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
    kind: str, nbytes: float, segments: Sequence[Segment], switched: bool = True
) -> CollectiveCost:
    """The cheapest algorithm for one collective.

    Args:
      kind: one of `KINDS`.
      nbytes: as for `bytes_sent`.
      segments: the levels that the group spans, innermost first, as `Topology.place` gives them.
      switched: whether any two devices of a level reach each other directly (false on a torus).

    Raises:
      ValueError: the kind is not one of `KINDS`.
    """
    if kind not in KINDS:
        raise ValueError(f"unknown collective {kind!r}; known: {', '.join(KINDS)}")
    segments = [s for s in segments if s.size > 1]
    if not segments:
        return CollectiveCost(0.0, "none")
    if len(segments) == 1:
        seconds = segments[0].level.seconds(kind, nbytes, segments[0].size)
        if seconds is not None:
            return CollectiveCost(seconds, "measured")
    choices = _flat(kind, nbytes, segments, switched)
    if len(segments) > 1:
        choices.append(
            CollectiveCost(_hierarchical(kind, nbytes, segments, switched), "hierarchical")
        )
    return min(choices, key=lambda choice: choice.seconds)


def _flat(
    kind: str, nbytes: float, segments: Sequence[Segment], switched: bool
) -> list[CollectiveCost]:
    """Algorithms that take the group as one: the slowest link and the longest latency rule."""
    n = math.prod(s.size for s in segments)
    alpha = max(s.level.latency for s in segments)
    beta = min(s.level.share for s in segments)
    once = nbytes * (n - 1) / n / beta
    steps = math.ceil(math.log2(n))
    if kind == "all_to_all":
        hops = 1.0 if switched else max(1.0, n / 4)
        ring = CollectiveCost((n - 1) * alpha + once * hops, "ring")
        return [ring, CollectiveCost(alpha + once, "direct")] if switched else [ring]
    if kind == "all_reduce":
        choices = [
            CollectiveCost(2 * ((n - 1) * alpha + once), "ring"),
            CollectiveCost(2 * steps * alpha + 2 * nbytes / beta, "tree"),
        ]
        direct = alpha + (n - 1) * nbytes / beta
    else:
        choices = [CollectiveCost((n - 1) * alpha + once, "ring")]
        if switched:
            choices.append(CollectiveCost(steps * alpha + once, "tree"))
        direct = alpha + once
    if switched:
        choices.append(CollectiveCost(direct, "direct"))
    return choices


def _hierarchical(kind: str, nbytes: float, segments: Sequence[Segment], switched: bool) -> float:
    """The inner level first, then the outer ones on what is left (and back, where reducing)."""
    inner, outer = segments[:1], segments[1:]
    n = inner[0].size

    def best(kind: str, nbytes: float, part: Sequence[Segment]) -> float:
        if not part:
            return 0.0
        flat = min(choice.seconds for choice in _flat(kind, nbytes, part, switched))
        return min(flat, _hierarchical(kind, nbytes, part, switched)) if len(part) > 1 else flat

    if kind == "all_reduce":
        return (
            best("reduce_scatter", nbytes, inner)
            + best("all_reduce", nbytes / n, outer)
            + best("all_gather", nbytes, inner)
        )
    if kind == "reduce_scatter":
        return best(kind, nbytes, inner) + best(kind, nbytes / n, outer)
    if kind == "all_gather":
        return best(kind, nbytes / n, outer) + best(kind, nbytes, inner)
    return best(kind, nbytes, inner) + best(kind, nbytes, outer)
