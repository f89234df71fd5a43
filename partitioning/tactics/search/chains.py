"""Chains of elementwise ops as one op each, so that fewer of them are decided and priced.

What holds of one array of a chain holds of all: ops that only pass on the dimensions of their
result are joined where an array that nothing else touches lies between them. What becomes of that
array is what becomes of the chain. Ops that touch a single array, as one that fills it or sums it
to a scalar, go along with that array and are left out.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping, Sequence

from ...decide.node import Node
from ...decide.sharding import Decisions
from ...ir.program import Value
from ...rules import REPLICATED_FACTOR, Rule
from ...rules.factor import Dims


@dataclasses.dataclass(frozen=True)
class Chains:
    """Nodes with chains joined.

    Attributes:
      nodes: chains, and the nodes outside of chains, in the order of the first node of each.
      of: from a node to its chain, or to itself; leaves are not there.
      leaves: from a node that goes along with one value to that value.
      inside: from a value inside of a chain to the chain.
      parts: from a chain to its nodes.
      dims: for a part of a chain, the dimension of the chain's values for each of its factors.
    """

    nodes: list[Node]
    of: dict[Node, Node]
    leaves: dict[Node, Value]
    inside: dict[Value, Node]
    parts: dict[Node, list[Node]]
    dims: dict[Node, Dims]


def join(
    nodes: Sequence[Node],
    touching: Mapping[Value, Sequence[Node]],
    state: Decisions,
    kept: Collection[Value],
    order: Mapping[Value, int],
) -> Chains:
    """Joins chains.

    Args:
      nodes: nodes.
      touching: for each value that can be decided on the nodes that touch it.
      state: the decisions so far; nodes that were decided differently are not joined.
      kept: values that stay visible, as they are named elsewhere.
      order: for each value a number, by which the values of a chain are ordered.
    """
    leaves = {n: value for n in nodes if (value := _only(n, touching)) is not None}
    dims = {
        n: found for n in nodes if n not in leaves and (found := _passed(n, touching)) is not None
    }
    kinds = {n: _kind(n, found, state) for n, found in dims.items()}
    parent = {n: n for n in kinds}

    def root(node: Node) -> Node:
        while parent[node] is not node:
            parent[node] = parent[parent[node]]
            node = parent[node]
        return node

    between: list[Value] = []
    for value, around in touching.items():
        around = [n for n in around if n not in leaves]
        if value in kept or not around or any(n not in kinds for n in around):
            continue
        kind = kinds[around[0]]
        if value.shape != kind[-2] or any(not _is_full(n, value, dims[n]) for n in around):
            continue
        tiles = tuple(state.tiles.get(value, {}).items())
        if all(kinds[n] == kind for n in around) and kind[-1] == tiles:
            between.append(value)
            for node in around[1:]:
                parent[root(node)] = root(around[0])
    parts: dict[Node, list[Node]] = {}
    for node in kinds:
        parts.setdefault(root(node), []).append(node)
    inside = {v: root(next(n for n in touching[v] if n in kinds)) for v in between}
    return _joined(nodes, touching, leaves, parts, inside, dims, order)


def _joined(
    nodes: Sequence[Node],
    touching: Mapping[Value, Sequence[Node]],
    leaves: dict[Node, Value],
    parts: dict[Node, list[Node]],
    inside: dict[Value, Node],
    dims: Mapping[Node, Dims],
    order: Mapping[Value, int],
) -> Chains:
    """The chains as nodes, of nodes by the first of each."""
    # One node may stand for many that feed each other, and be a chain by itself.
    long = set(inside.values())
    chains = {n: _chain(parts[n], touching, inside, dims, order) for n in parts if n in long}
    of: dict[Node, Node] = {}
    for first, members in parts.items():
        for node in members:
            of[node] = chains.get(first, node)
    for node in nodes:
        if node not in leaves:
            of.setdefault(node, node)
    return Chains(
        list(dict.fromkeys(of[n] for n in nodes if n in of)),
        of,
        leaves,
        {v: of[n] for v, n in inside.items()},
        {chain: parts[first] for first, chain in chains.items()},
        {part: dims[part] for first in chains for part in parts[first]},
    )


def _chain(
    members: list[Node],
    touching: Mapping[Value, Sequence[Node]],
    inside: Mapping[Value, Node],
    dims: Mapping[Node, Dims],
    order: Mapping[Value, int],
) -> Node:
    """One node for many, of the values around them."""
    read: dict[tuple[Value, Dims], None] = {}
    made: dict[tuple[Value, Dims], None] = {}
    for node in members:
        count, place = len(node.rule.operands), dims[node]
        for i, (value, own) in enumerate(zip(node.values, node.dims, strict=True)):
            if value in touching and value not in inside:
                at = tuple([REPLICATED_FACTOR if f == REPLICATED_FACTOR else place[f] for f in own])
                (read if i < count else made)[value, at] = None
    operands, results = (sorted(some, key=lambda v: (order[v[0]], v[1])) for some in (read, made))
    first = members[0]
    sizes = first.op.outputs[0].shape if first.op is not None else ()
    rule = Rule(tuple(d for _, d in operands), tuple(d for _, d in results), sizes)
    return Node(
        first.op, first.owner, rule, tuple(v for v, _ in (*operands, *results)), first.loops
    )


def _kind(node: Node, dims: Dims, state: Decisions) -> tuple[object, ...]:
    """A key that the nodes of one chain share: loops, pass, shape, and decided factors last."""
    assert node.op is not None
    factors = tuple([(axis, dims[f]) for axis, f in state.factors.get(node, {}).items()])
    return node.loops, node.op.backward, node.op.outputs[0].shape, factors


def _passed(node: Node, touching: Mapping[Value, Sequence[Node]]) -> Dims | None:
    """The result's dimension for each factor; None where a factor has none, or only part of one."""
    rule = node.rule
    if node.op is None or rule.monoids or rule.special or not rule.results:
        return None
    (first, *others), shape = rule.results, node.op.outputs[0].shape
    if sorted(first) != list(range(len(shape))) or len(rule.sizes) != len(shape):
        return None
    if any(other != first for other in others) or node.op.outputs[0] not in touching:
        return None
    dims = tuple(first.index(f) for f in range(len(first)))
    return dims if all(rule.sizes[f] == shape[d] for f, d in enumerate(dims)) else None


def _is_full(node: Node, value: Value, dims: Dims) -> bool:
    """True if a value's dimensions are those of the result, in the same order."""
    found = [d for v, d in zip(node.values, node.dims, strict=True) if v is value]
    through = tuple(range(len(dims)))
    return all(REPLICATED_FACTOR not in d and tuple([dims[f] for f in d]) == through for d in found)


def _only(node: Node, touching: Mapping[Value, Sequence[Node]]) -> Value | None:
    """The single value that a node touches, if every dimension of it is free there."""
    if node.op is None or node.rule.special:
        return None
    found = {v: d for v, d in zip(node.values, node.dims, strict=True) if v in touching}
    if len(found) != 1:
        return None
    ((value, dims),) = found.items()
    alike = all(d == dims for v, d in zip(node.values, node.dims, strict=True) if v is value)
    free = REPLICATED_FACTOR not in dims and len(set(dims)) == len(dims)
    whole = tuple(node.rule.sizes[d] for d in dims) == value.shape
    return value if alike and free and whole else None
