"""Finds the forward passes of a step of which only one is differentiated.

A step may compute with a network and, besides, with a target, a reference or an older policy. Each
of these is a chain of products, and they meet in the loss: what no product reads of two of them
leaves them apart.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Iterator, Mapping

from ...ir.disjoint_sets import DisjointSets
from ...ir.program import Op, Value
from .dependence import Dependences


@dataclasses.dataclass(frozen=True, eq=False)
class ForwardChains:
    """The forward passes of a step.

    Attributes:
      of: the number of the chain of each op of `Dependences.forward`; the last chain is the
        differentiated one, and makes the loss.
      count: how many chains there are.
    """

    of: Mapping[Op, int]
    count: int

    def products(self, chain: int, heavy: Collection[Op]) -> list[Op]:
        """The products of a chain, in order."""
        return [op for op, number in self.of.items() if number == chain and op in heavy]


def forward_passes(
    dependence: Dependences, is_product: Callable[[Op], bool], stages: int
) -> ForwardChains:
    """Finds the chains of a step.

    Args:
      dependence: of a step.
      is_product: tells the ops that segments are cut between.
      stages: a chain with fewer products than there are stages is part of the last one.
    """
    sets: DisjointSets[Op] = DisjointSets()
    behind: dict[Value, frozenset[Op]] = {}
    chains: dict[Op, frozenset[Op]] = {}
    for op in dependence.forward:
        read = frozenset().union(*(behind.get(v, frozenset()) for v in op.inputs))
        if is_product(op):
            for other in read:
                sets.join(op, other)
            read = frozenset({op})
        chains[op] = read
        behind.update(dict.fromkeys(op.outputs, read))
    found = {op: {sets.root(one) for one in read} for op, read in chains.items()}

    differentiated = set(_differentiated(dependence, is_product, found))
    sizes: dict[Op, int] = {}
    for op in dependence.forward:
        if is_product(op):
            root = sets.root(op)
            sizes[root] = sizes.get(root, 0) + 1
    others = [one for one, size in sizes.items() if one not in differentiated and size >= stages]
    if not differentiated:
        others = []
    number = {one: i for i, one in enumerate(others)}
    last = len(others)
    of: dict[Op, int] = {}
    reads: dict[Value, int] = {}
    for op in reversed(dependence.forward):
        if len(found[op]) == 1:
            (one,) = found[op]
            chain = number.get(one, last)
        elif found[op]:
            chain = last
        else:
            # Before the first product: with the first chain that reads it.
            chain = min((reads[v] for v in op.outputs if v in reads), default=last)
        of[op] = chain
        for value in op.inputs:
            reads[value] = min(reads.get(value, last), chain)
    return ForwardChains({op: of[op] for op in dependence.forward}, last + 1)


def _differentiated(
    dependence: Dependences, is_product: Callable[[Op], bool], found: Mapping[Op, set[Op]]
) -> Iterator[Op]:
    """The chains of which products of the backward pass read activations."""
    maker = {v: op for op in dependence.forward for v in op.outputs}
    for op in filter(is_product, dependence.backward):
        for value in op.inputs:
            if value in maker and len(found[maker[value]]) == 1:
                yield from found[maker[value]]
