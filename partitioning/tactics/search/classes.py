"""Repeated parts of a program as one: values and ops that look alike, by structure alone.

A model of 24 equal blocks is searched as if it had a few: whatever is decided for one array is
decided for all that stand in the same place of another block. What stands in the same place is
found by colour refinement (Weisfeiler and Leman): an array's colour is its type and what was
decided of it, then, round by round, also the colours of the ops that touch it. Neither names nor
source lines enter, and no position in the program either, so that renaming changes nothing.
"""

from __future__ import annotations

import dataclasses
import zlib
from collections.abc import Collection, Container, Iterable, Sequence
from typing import Any

import numpy as np

from ...decide.actions import Action, Context, ForceFactor
from ...decide.graph import Graph
from ...decide.node import Node
from ...decide.sharding import Decisions
from ...decide.structure import GraphStructure
from ...ir.program import Value
from ...rules import traits_of
from .chains import join

#: Steps that values look around. Fewer join what is not alike, more leave ends of a model apart.
ROUNDS = 6
#: Ops of a chain that are about as far from its ends as each other.
_BREADTH = 4


@dataclasses.dataclass(frozen=True)
class OpClasses:
    """Classes of nodes, op by op.

    Attributes:
      nodes: one of each, in the order of the first.
      node_members: to all nodes of the program that it stands for.
      of: from a node of the program to the one that stands for it.
      touching: for a class's value the nodes that read or make it.
    """

    nodes: list[Node]
    node_members: dict[Node, list[Node]]
    of: dict[Node, Node]
    touching: dict[Value, list[Node]]


def _touching(nodes: Iterable[Node], values: Container[Value]) -> dict[Value, list[Node]]:
    found: dict[Value, list[Node]] = {}
    for node in nodes:
        for value in dict.fromkeys(node.values):
            if value in values:
                found.setdefault(value, []).append(node)
    return found


class ClassGraph:
    """A graph of classes, for propagation and tactics' actions, and its mapping to the program.

    A node of it stands for all nodes with the same op, rule and decisions that touch values of the
    same classes. Every node of the program belongs to one. Its values are values of the program,
    the first of each class.

    Args:
      graph: the program.
      state: the decisions so far: values and nodes of one class have the same ones.
      rounds: how often colours are refined.
      named: values of the program that actions will name; others may be hidden inside of chains.

    Attributes:
      program: the traced program.
      by_op: classes of nodes, op by op.
      chains: the joined chains of those classes.
      delays: for a chain, the rounds of propagation's queue that it waits, as passing through it
        op by op would take them.
      nodes: classes of nodes with chains joined, in the order of the first of each.
      touching: for a class's value the nodes that read or make it, unless it is inside a chain.
      updated: state that comes in to state that comes out.
      class_of: a value of the program to the one that stands for it.
      members: that one to all, in program order.
      node_members: a node to all nodes of the program that it stands for.
      colour: for a class's value or a node, a number that depends on structure alone.
    """

    def __init__(
        self,
        graph: Graph,
        state: Decisions,
        rounds: int = ROUNDS,
        named: Iterable[Value] = (),
    ):
        self.program = graph.program
        self.graph = graph
        values = list(graph.touching)
        index = {value: i for i, value in enumerate(values)}
        own = _first_colours(graph, state, values)
        kinds = [_kind(node, state) for node in graph.nodes]
        colours = _refine(graph, index, own, kinds, rounds)
        self.class_of: dict[Value, Value] = {}
        self.members: dict[Value, list[Value]] = {}
        self.colour: dict[Any, int] = {}
        first: dict[int, Value] = {}
        for value, colour in zip(values, colours.tolist(), strict=True):
            stands = first.setdefault(colour, value)
            self.class_of[value] = stands
            self.members.setdefault(stands, []).append(value)
            self.colour[stands] = colour
        self.by_op = self._classify_nodes(graph, kinds)
        ends = (*graph.program.inputs, *graph.program.outputs, *named)
        self._join_chains(state, {self.class_of[v] for v in ends if v in self.class_of})
        self.updated = {
            self.class_of[a]: self.class_of[b]
            for a, b in graph.updated.items()
            if a in self.class_of and b in self.class_of
        }
        self.inputs = tuple(
            dict.fromkeys(self.class_of[v] for v in graph.program.inputs if v in self.class_of)
        )

    @property
    def structure(self) -> GraphStructure:
        """The parts of the program by their structure."""
        return self.graph.structure

    def _classify_nodes(self, graph: Graph, kinds: list[int]) -> OpClasses:
        found: dict[tuple[int, ...], Node] = {}
        members: dict[Node, list[Node]] = {}
        of: dict[Node, Node] = {}
        class_of, colour = self.class_of, self.colour
        for node, kind in zip(graph.nodes, kinds, strict=True):
            standing = tuple([class_of.get(v, v) for v in node.values])
            key = (kind, *[colour.get(v, 0) for v in standing])
            stands = found.get(key)
            if stands is None:
                stands = found[key] = Node(node.op, node.owner, node.rule, standing, node.loops)
                self.colour[stands] = hash(key)
            members.setdefault(stands, []).append(node)
            of[node] = stands
        nodes = list(found.values())
        return OpClasses(nodes, members, of, _touching(nodes, self.members))

    def _join_chains(self, state: Decisions, kept: Collection[Value]) -> None:
        """One node for each chain of elementwise ops."""
        by_op, colour = self.by_op, self.colour
        decided = self._decided_by_op(state)
        chains = self.chains = join(by_op.nodes, by_op.touching, decided, kept, colour)
        self.delays = {n: len(parts) // _BREADTH for n, parts in chains.parts.items()}
        self.nodes = chains.nodes
        outside = {v for v in by_op.touching if v not in chains.inside}
        self.touching = _touching(self.nodes, outside)
        self.node_members: dict[Node, list[Node]] = {}
        for node in by_op.nodes:
            if node in chains.of:
                self.node_members.setdefault(chains.of[node], []).extend(by_op.node_members[node])
        for node, parts in chains.parts.items():
            if node not in colour:
                colour[node] = hash(tuple(sorted(colour[part] for part in parts)))

    def class_of_node(self, node: Node) -> Node | None:
        """The node of this graph for a node of the program; None if it goes along with a value."""
        return self.chains.of.get(self.by_op.of[node])

    def decisions(self, state: Decisions) -> Decisions:
        """The decisions on the program as decisions on classes."""
        return self._decided_of_chains(self._decided_by_op(state))

    def _decided_by_op(self, state: Decisions) -> Decisions:
        """The decisions on the program as decisions on classes, before chains are joined."""
        decided = Decisions(state.mesh)
        for decision in state.journal:
            decided.tactic, axis = decision.tactic, decision.axis
            # The turns of a loop are no node here.
            node = None if decision.node is None else self.by_op.of.get(decision.node)
            if decision.value is not None:
                value = self.class_of.get(decision.value)
                if value is not None and axis not in decided.tiles.get(value, ()):
                    decided.set_value(value, axis, decision.what, node)
            elif node is not None and axis not in decided.factors.get(node, ()):
                decided.set_node(node, axis, decision.what)
        decided.tactic = state.tactic
        return decided

    def _decided_of_chains(self, by_op: Decisions) -> Decisions:
        """The decisions on classes as decisions with chains joined."""
        decided, chains = Decisions(by_op.mesh), self.chains
        for decision in by_op.journal:
            decided.tactic, axis, node = decision.tactic, decision.axis, decision.node
            stands = None if node is None else chains.of.get(node)
            if decision.value is not None:
                if decision.value not in chains.inside:
                    decided.set_value(decision.value, axis, decision.what, stands)
            elif stands is not None and axis not in decided.factors.get(stands, ()):
                dims = chains.dims.get(node) if node is not None else None
                factor = decision.what if dims is None else dims[decision.what]
                decided.set_node(stands, axis, factor)
        decided.tactic = by_op.tactic
        return decided

    def context(self, state: Decisions, tactics: tuple[str, ...]) -> Context:
        """A context for actions on classes, with this graph in the place of the program's."""
        return Context(self, state, tactics)  # type: ignore[arg-type]

    def to_classes(self, actions: Sequence[Action | ForceFactor]) -> list[Action | ForceFactor]:
        """Actions on the program as actions on classes, each once."""
        found: dict[Action | ForceFactor, None] = {}
        for action in actions:
            if isinstance(action, ForceFactor):
                if (node := self.class_of_node(action.node)) is not None:
                    dims = self.chains.dims.get(self.by_op.of[action.node])
                    factor = action.factor if dims is None else dims[action.factor]
                    found[ForceFactor(node, action.axis, factor)] = None
            elif (value := self.class_of.get(action.value)) is not None:
                found[Action(value, action.axis, action.what)] = None
        return list(found)

    def to_members(self, actions: Sequence[Action | ForceFactor]) -> list[Action | ForceFactor]:
        """Actions on classes as actions on all their members."""
        found: list[Action | ForceFactor] = []
        for action in actions:
            if isinstance(action, ForceFactor):
                for part in self.chains.parts.get(action.node, (action.node,)):
                    dims = self.chains.dims.get(part)
                    factor = action.factor if dims is None else dims.index(action.factor)
                    found += [
                        ForceFactor(n, action.axis, factor) for n in self.by_op.node_members[part]
                    ]
            else:
                found += [Action(v, action.axis, action.what) for v in self.members[action.value]]
        return found


def _text(text: str) -> int:
    """A number for a text, the same in every process."""
    return zlib.crc32(text.encode())


def _first_colours(graph: Graph, state: Decisions, values: Sequence[Value]) -> list[int]:
    """Colours of values by type, decisions, and role as input, output or state."""
    program = graph.program
    fed = {v for v in program.inputs if v not in graph.updated}
    out = set(program.outputs)
    axes = {axis: i for i, axis in enumerate(state.mesh)}
    names: dict[Any, int] = {}
    found = []
    for value in values:
        dtype = value.dtype
        if dtype not in names:
            names[dtype] = _text(getattr(dtype, "name", str(dtype)))
        tiles = tuple([(axes[a], d) for a, d in state.tiles.get(value, {}).items()])
        role = (value in graph.updated, value in fed, value in out)
        found.append(hash((value.shape, names[dtype], tiles, role)))
    return found


def _kind(node: Node, state: Decisions) -> int:
    """The colour of a node by itself, without its neighbours."""
    rule = node.rule
    name = "state" if node.owner is None else node.owner.name
    axes = {axis: i for i, axis in enumerate(state.mesh)}
    factors = tuple([(axes[a], f) for a, f in state.factors.get(node, {}).items()])
    monoids = tuple(sorted((f, _text(m)) for f, m in rule.monoids.items()))
    shapes = tuple([v.shape for v in node.values])
    what = (_text(name), node.op is None, rule.operands, rule.results, rule.sizes, monoids)
    return hash((what, node.loops, factors, shapes))


def _refine(
    graph: Graph, index: dict[Value, int], own: list[int], kinds: list[int], rounds: int
) -> np.ndarray:
    """Colours of values after so many rounds, as unsigned numbers."""
    nodes, values, places = [], [], []
    for n, node in enumerate(graph.nodes):
        for position, value in enumerate(node.values):
            at = index.get(value)
            if at is not None:
                nodes.append(n)
                values.append(at)
                places.append(position)
    node_at, value_at = np.array(nodes, np.int64), np.array(values, np.int64)
    place = _mix(np.array(places, np.uint64) + np.uint64(1))
    kind = _mix(np.array(kinds, np.int64).astype(np.uint64))
    cluster = _clusters(graph, index)
    first = colours = _mix(np.array(own, np.int64).astype(np.uint64))
    for _ in range(rounds):
        seen = kind.copy()
        np.add.at(seen, node_at, _mix(colours[value_at] ^ place))
        together = np.zeros(len(own), np.uint64)
        np.add.at(together, cluster, colours)
        found = first ^ _mix(together)[cluster]
        np.add.at(found, value_at, _mix(_mix(seen)[node_at] + place))
        colours = _mix(found)
    return colours


def _clusters(graph: Graph, index: dict[Value, int]) -> np.ndarray:
    """A number for each value, the same for values of one shape that elementwise ops join.

    A parameter, its gradient and its moments are of one: what tells two parameters apart tells
    their moments apart.
    """
    parent = list(range(len(index)))

    def root(i: int) -> int:
        while parent[i] != i:
            parent[i] = parent[parent[i]]
            i = parent[i]
        return i

    for node in graph.nodes:
        if node.op is None or not traits_of(node.op.name).elementwise:
            continue
        result = node.op.outputs[0]
        for value in node.op.inputs:
            if value.shape == result.shape and value in index and result in index:
                parent[root(index[value])] = root(index[result])
    return np.array([root(i) for i in range(len(parent))], np.int64)


def _mix(x: np.ndarray) -> np.ndarray:
    """The finaliser of splitmix64: what differs little differs much afterwards."""
    with np.errstate(over="ignore"):
        x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return x ^ (x >> np.uint64(31))
