"""Sums that a scatter starts from: what is added to a scatter onto zeros is scattered onto."""

from __future__ import annotations

import collections

from ...rules import traits_of
from .nodes import OPAQUE, ArrayGraph, ArrayNode, uniform


def scatter_onto_sums(graph: ArrayGraph) -> None:
    """Writes `x + scatter(zeros)` as `scatter(x)` where nobody else reads that scatter.

    Args:
      graph: without users yet; what is left without readers is dropped as it is finished.
    """
    readers = collections.Counter(n for node in graph.nodes for n in node.operands)
    readers.update(graph.outputs)
    for node in graph.nodes:
        if traits_of(node.name).signs != (1, 1) or len(node.operands) != 2:
            continue
        for scatter, other in (node.operands, node.operands[::-1]):
            if (
                readers[scatter] == 1
                and _adds_to_zeros(scatter)
                and traits_of(other.name).traffic != "scatter"
                and other.shape == node.shape
                and node.direct.issuperset((scatter, other))
            ):
                node.kind, node.name, node.op = OPAQUE, scatter.name, scatter.op
                node.flops, node.transcendentals = scatter.flops, scatter.transcendentals
                node.operands = list(dict.fromkeys([other, *scatter.operands[1:]]))
                node.in_place, node.fuses, node.elementwise = 0, False, False
                break


def _adds_to_zeros(node: ArrayNode) -> bool:
    """True of a scatter that adds to an array of zeros."""
    return traits_of(node.name).accumulates and uniform(node.operands[0])
