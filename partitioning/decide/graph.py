"""A program seen by propagation: nodes with rules, and the values that join them.

An op is a node. Loops and branches contribute *ties*: nodes without an op that say that values in
and around a region are one array, such as a loop's carry before, inside and after. A loop with
independent turns is a node besides, through which nothing propagates.
"""

from __future__ import annotations

import functools
from collections.abc import Collection, Iterable, Iterator

from ..ir.program import Op, Program, Value
from ..rules import rule_of, traits_of
from ..rules.factor import REPLICATED_FACTOR, Rule
from ..rules.turns import turns_of
from .flops import OpFlops
from .node import Node
from .structure import GraphStructure


class Graph:
    """Nodes of a program and its regions, in program order.

    Attributes:
      program: the traced program.
      nodes: all nodes with at least one factor.
      of: the node of an op.
      touching: the nodes that read or make a value.
      makers: the op that makes a value.
      unruled: ops without a rule, with the number of loops that they are inside.
      loops: for a loop with independent turns the node of its turns; outer loops first.
      delays: the rounds of propagation's queue that a node waits if it stands for several ops;
        empty for a program's own nodes.
      state: (input, output, output's position) of arrays that come in and go out updated.
      weights: inputs that are parameters and do not go out.

    Args:
      program: see above.
      weights: names of the arguments that these are in.
    """

    def __init__(self, program: Program, weights: Collection[str] = ()):
        self.program = program
        self.nodes: list[Node] = []
        self.of: dict[Op, Node] = {}
        self.touching: dict[Value, list[Node]] = {}
        self.makers: dict[Value, Op] = {}
        self.unruled: list[tuple[Op, int]] = []
        self.loops: dict[Op, Node] = {}
        self.delays: dict[Node, int] = {}
        self._add_program(program, 0)
        self.state = state_pairs(program, self.makers)
        self.updated = {before: after for before, after, _ in self.state}
        self.weights = _inputs_of(program, weights)
        for before, after, _ in self.state:
            self._tie(None, [(before, 0), (after, 0)], 0)

    @functools.cached_property
    def structure(self) -> GraphStructure:
        """The parts of the step by their structure."""
        return GraphStructure(
            self.program, self.nodes, self.touching, self.makers, self.updated, self.weights
        )

    @functools.cached_property
    def work(self) -> OpFlops:
        """The floating point operations of the program's ops."""
        return OpFlops(self.program)

    def _add_program(self, program: Program, loops: int) -> None:
        for op in program.ops:
            for value in op.outputs:
                self.makers[value] = op
            if op.regions:
                self._add_regions(op, loops)
                continue
            rule = rule_of(op)
            if rule is None:
                self.unruled.append((op, loops))
            elif rule.sizes:
                self._add(Node(op, op, rule, op.inputs + op.outputs, loops))

    def _add(self, node: Node) -> None:
        if node.op is not None:
            self.of[node.op] = node
        self.nodes.append(node)
        touching = self.touching
        for value in dict.fromkeys(node.values):
            if value.shape and value.data is None:
                touching.setdefault(value, []).append(node)

    def _tie(self, owner: Op | None, values: Iterable[tuple[Value, int]], loops: int) -> None:
        """Ties values that share their dimensions after the given number of leading ones."""
        kept = [(v, skip) for v, skip in values if v.data is None and v.ndim > skip]
        if len(kept) < 2:
            return
        first, skipped = kept[0]
        sizes = first.shape[skipped:]
        dims = tuple((REPLICATED_FACTOR,) * skip + tuple(range(len(sizes))) for _, skip in kept)
        self._add(Node(None, owner, Rule(dims, (), sizes), tuple(v for v, _ in kept), loops))

    def _add_regions(self, op: Op, loops: int) -> None:
        inner = loops + (op.name in ("scan", "while"))
        if op.name == "scan" and (turns := turns_of(op)) is not None:
            self.loops[op] = Node(op, op, turns.rule, op.inputs + op.outputs, loops)
        for region in op.regions:
            self._add_program(region, inner)
        for values in ties(op):
            self._tie(op, values, inner)


def ties(op: Op) -> Iterator[list[tuple[Value, int]]]:
    """For an op with regions, the groups of values that are one array, with leading dimensions
    to skip.
    """
    if op.name == "scan":
        (body,) = op.regions
        consts, carry = op.params["num_consts"], op.params["num_carry"]
        for i in range(consts):
            yield [(op.inputs[i], 0), (body.inputs[i], 0)]
        for i in range(carry):
            k = consts + i
            yield [(op.inputs[k], 0), (body.inputs[k], 0), (body.outputs[i], 0), (op.outputs[i], 0)]
        for k in range(consts + carry, len(op.inputs)):
            yield [(op.inputs[k], 1), (body.inputs[k], 0)]
        for i in range(carry, len(op.outputs)):
            yield [(body.outputs[i], 0), (op.outputs[i], 1)]
    elif op.name == "while":
        cond, body = op.regions
        cond_consts, body_consts = op.params["cond_nconsts"], op.params["body_nconsts"]
        for i in range(cond_consts):
            yield [(op.inputs[i], 0), (cond.inputs[i], 0)]
        for i in range(body_consts):
            yield [(op.inputs[cond_consts + i], 0), (body.inputs[i], 0)]
        for i in range(len(op.outputs)):
            yield [
                (op.inputs[cond_consts + body_consts + i], 0),
                (body.inputs[body_consts + i], 0),
                (cond.inputs[cond_consts + i], 0),
                (body.outputs[i], 0),
                (op.outputs[i], 0),
            ]
    elif op.name == "cond":
        for i, operand in enumerate(op.inputs[1:]):
            yield [(operand, 0)] + [(branch.inputs[i], 0) for branch in op.regions]
        for i, result in enumerate(op.outputs):
            yield [(branch.outputs[i], 0) for branch in op.regions] + [(result, 0)]
    else:
        (body,) = op.regions
        for outer, inner in zip(op.inputs, body.inputs, strict=True):
            yield [(outer, 0), (inner, 0)]
        for inner, outer in zip(body.outputs, op.outputs, strict=True):
            yield [(inner, 0), (outer, 0)]


def _inputs_of(program: Program, names: Collection[str]) -> tuple[Value, ...]:
    """The inputs that arguments of these names are made of."""
    signature = program.signature
    if signature is None:
        return ()
    starts = (0, *signature.ends)
    return tuple(
        value
        for name, start, end in zip(signature.names, starts, signature.ends, strict=False)
        if name in names
        for value in program.inputs[start:end]
    )


def state_pairs(program: Program, makers: dict[Value, Op]) -> tuple[tuple[Value, Value, int], ...]:
    """Inputs that come out again updated, found by structure.

    An argument is state if its pytree, shapes and dtypes are those of the result, or of one of its
    elements. A lone array must besides be updated elementwise, as any function may return an array
    of such a shape.
    """
    signature = program.signature
    if signature is None:
        return ()
    children = _children(signature.out_tree)
    spans = [(signature.out_tree, 0)]
    start = 0
    for child in children:
        spans.append((child, start))
        start += child.num_leaves
    pairs: list[tuple[Value, Value, int]] = []
    taken: set[int] = set()
    begin = 0
    for tree, end in zip(signature.in_trees, signature.ends, strict=True):
        inputs = program.inputs[begin:end]
        begin = end
        for out_tree, offset in spans:
            outputs = program.outputs[offset : offset + out_tree.num_leaves]
            if (
                tree != out_tree
                or not inputs
                or any(offset + i in taken for i in range(len(inputs)))
            ):
                continue
            if tree.num_nodes == 1 and not _updated(inputs[0], outputs[0], makers):
                continue
            if all(
                i.shape == o.shape and i.dtype == o.dtype
                for i, o in zip(inputs, outputs, strict=True)
            ):
                taken.update(range(offset, offset + len(inputs)))
                pairs.extend(
                    (i, o, offset + k)
                    for k, (i, o) in enumerate(zip(inputs, outputs, strict=True))
                    if o.data is None
                )
                break
    return tuple(pairs)


def is_store(before: Value, after: Value, makers: dict[Value, Op]) -> bool:
    """True if state comes out again as it came in, or with rows written over others: data."""
    op = makers.get(after)
    while after is not before and op is not None:
        if traits_of(op.name).traffic not in ("update", "scatter"):
            return False
        after = op.inputs[0]
        op = makers.get(after)
    return after is before


def _children(tree: object) -> list:
    return [] if tree.node_data() is None else list(tree.children())  # type: ignore[attr-defined]


def _updated(before: Value, after: Value, makers: dict[Value, Op]) -> bool:
    """True if `after` follows from `before` through elementwise ops alone."""
    seen, stack = set(), [after]
    while stack:
        value = stack.pop()
        if value is before:
            return True
        op = makers.get(value)
        if value in seen or op is None or not traits_of(op.name).elementwise:
            continue
        seen.add(value)
        stack.extend(v for v in op.inputs if v.shape == before.shape)
    return False
