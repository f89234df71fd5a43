"""From a program to the compiler's view of it: arrays that may become buffers, and what makes them.

The passes of a compiler that matter for memory and time are followed here, one by one: views
disappear, equal computations are shared, matrix products get their operands in a canonical order
(which may need a transposed copy), large reductions work in two stages, checkpoint regions are
inlined, and a scan becomes a loop over stacked buffers that are updated in place.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from ..program import COLLECTIVES, Op, Program, Value
from . import costs

# What a node is, as far as fusion is concerned.
PARAM, CONSTANT, FUSIBLE, OPAQUE, LOOP, BRANCH, ELEMENT = range(7)

REDUCE_WINDOW = 32  # a reduction over a longer dimension first reduces blocks of this length

_FUSIBLE_MOVES = frozenset(
    [
        "slice",
        "dynamic_slice",
        "dynamic_update_slice",
        "pad",
        "concatenate",
        "rev",
        "iota",
        "select_and_gather_add",
        "clamp",
    ]
)
_EXPENSIVE = costs.TRANSCENDENTAL | {"div", "rem", "gather", "all_slice_offset"}
_IN_PLACE = frozenset(["dynamic_update_slice"])
RANDOM = frozenset(["random_bits", "random_split", "random_fold_in", "threefry2x32"])
_HALF = frozenset(["bfloat16", "float16"])


#: Later CPU compilers keep optimisation barriers and combine all_reduces.
NEWER = tuple(int(part) for part in jax.__version__.split(".")[:2]) >= (0, 7)


class Node:
    """One array (or, for a loop or a branch, a group of arrays) of the compiled program.

    Attributes:
      index: position in the graph, after every operand.
      kind: one of the constants above.
      name: the op's name.
      nbytes: size of the array; 0 for loops and branches, whose elements are nodes of their own.
      shape: the array's shape.
      operands: nodes read, without repetition.
      users: nodes that read this one.
      op: the program's op, or None.
      flops, transcendentals: of one run.
      expensive: not worth computing twice.
      reuses: each operand element is read many times (a broadcast, a gather).
      elementwise: result position i depends on operand positions i alone.
      unary: computing it again reads no more than one full array.
      direct: operands used in their own shape, not through a view.
      in_place: index in `operands` of the array whose buffer the result must take, or -1.
      fuses: whether it may take producers into its kernel.
      body: for loops and branches, the graphs inside.
    """

    __slots__ = (
        "body",
        "data",
        "direct",
        "elementwise",
        "expensive",
        "feeds",
        "flops",
        "fuses",
        "in_place",
        "index",
        "kind",
        "name",
        "nbytes",
        "op",
        "operands",
        "reuses",
        "shape",
        "transcendentals",
        "unary",
        "users",
    )  # fmt: skip

    def __init__(self, index: int, kind: int, name: str, nbytes: int, shape: tuple[int, ...]):
        self.index = index
        self.kind = kind
        self.name = name
        self.nbytes = nbytes
        self.shape = shape
        self.operands: list[Node] = []
        self.users: list[Node] = []
        self.op: Op | None = None
        self.flops = 0.0
        self.transcendentals = 0.0
        self.expensive = False
        self.reuses = False
        self.elementwise = False
        self.unary = True
        self.direct: frozenset[Node] = frozenset()
        self.in_place = -1
        self.fuses = False
        self.feeds = True
        self.body: tuple[Graph, ...] = ()
        self.data: Any = None

    def __repr__(self) -> str:
        return f"Node({self.index} {self.name} {self.shape} {self.nbytes})"


class Graph:
    """Nodes in an order that respects dependencies, inputs and results.

    Attributes:
      nodes: every node.
      params: one per input of the program, in order.
      outputs: one per result; an input or a constant may be a result.
      trips: for a loop's body, how often it runs; else 1.
      carried: for a loop's body, per result the parameter whose buffer it goes back to.
    """

    def __init__(self) -> None:
        self.nodes: list[Node] = []
        self.params: list[Node] = []
        self.outputs: list[Node] = []
        self.trips = 1
        self.carried: list[Node] = []


def build(program: Program, kind: str = "cpu") -> Graph:
    """The compiler's view of a program.

    Args:
      program: global or local.
      kind: the device's kind; it decides how reductions, half-precision products and checkpoints
        are compiled.
    """
    builder = _Builder(kind)
    for value in program.inputs:
        builder.env[value] = builder.param(value)
    builder.graph.params = list(builder.graph.nodes)
    builder.run(program)
    builder.graph.outputs = [builder.read(v) for v in program.outputs]
    if kind == "cpu" and NEWER:
        combine_all_reduces(builder.graph)
    _finish(builder.graph)
    return builder.graph


def combine_all_reduces(graph: Graph) -> None:
    """Makes one of all_reduces over the same axes that do not wait for each other."""
    for by_level in (False, True):
        groups = _independent(graph, by_level)
        if _reorder(graph, groups):
            return


def _independent(graph: Graph, by_level: bool) -> list[list[Node]]:
    """Groups of all_reduces of which none needs another's result; by level they make no circle."""
    before: list[int] = []
    level: list[int] = []
    masks: dict[Any, list[tuple[int, list[Node]]]] = {}
    count = 0
    for node in graph.nodes:
        seen = depth = 0
        for operand in node.operands:
            seen |= before[operand.index]
            depth = max(depth, level[operand.index])
        if node.name == "all_reduce" and node.op is not None and node.nbytes:
            key = (str(node.op.params), node.op.inputs[0].dtype, depth if by_level else 0)
            bit = 1 << count
            count += 1
            groups = masks.setdefault(key, [])
            for place, (mask, members) in enumerate(groups):
                if not seen & mask:
                    groups[place] = (mask | bit, [*members, node])
                    break
            else:
                groups.append((bit, [node]))
            seen |= bit
            depth += 1
        before.append(seen)
        level.append(depth)
    return [members for groups in masks.values() for _, members in groups if len(members) > 1]


def _reorder(graph: Graph, groups: list[list[Node]]) -> bool:
    """Puts one node in the place of each group; false, and nothing done, where it cannot be."""
    group_of: dict[Node, Node] = {}
    for members in groups:
        group = Node(-1, OPAQUE, "all_reduce", 0, ())
        group.operands = list(dict.fromkeys(n for m in members for n in m.operands))
        group.op = members[0].op
        group.data = sum(m.nbytes for m in members)
        group.flops = sum(m.flops for m in members)
        group_of.update(dict.fromkeys(members, group))
    needs = {n: [group_of[n]] if n in group_of else n.operands for n in graph.nodes}
    needs.update({g: g.operands for g in group_of.values()})
    ordered: list[Node] = []
    state: dict[Node, int] = {}
    for start in graph.nodes:
        stack = [start]
        while stack:
            node = stack[-1]
            if state.get(node) == 2:
                stack.pop()
                continue
            waiting = [n for n in needs[node] if state.get(n) != 2]
            if not waiting:
                state[node] = 2
                ordered.append(node)
                stack.pop()
                continue
            state[node] = 1
            if any(state.get(n) == 1 for n in waiting):
                return False
            stack.extend(waiting)
    for members in groups:
        for position, member in enumerate(members):
            member.kind, member.operands = ELEMENT, [group_of[member]]
            member.data = position
    for index, node in enumerate(ordered):
        node.index = index
    graph.nodes = ordered
    return True


def _finish(graph: Graph) -> None:
    """Drops what no result needs and records who reads what."""
    needed = [False] * len(graph.nodes)
    for node in graph.outputs:
        needed[node.index] = True
    for node in graph.params:
        needed[node.index] = True
    for node in reversed(graph.nodes):
        if needed[node.index]:
            for operand in node.operands:
                needed[operand.index] = True
    graph.nodes = [n for n in graph.nodes if needed[n.index]]
    for index, node in enumerate(graph.nodes):
        node.index = index
        for operand in node.operands:
            operand.users.append(node)


def _uniform(node: Node) -> bool:
    """Whether every element of a node is the same."""
    return node.name == "broadcast_in_dim" and all(math.prod(n.shape) == 1 for n in node.operands)


class _Builder:
    def __init__(self, kind: str):
        self.kind = kind
        self.graph = Graph()
        self.env: dict[Value, Node] = {}
        self.known: dict[Any, Node] = {}
        self.epoch = 0

    # -- nodes ------------------------------------------------------------------------------------

    def node(
        self,
        kind: int,
        name: str,
        nbytes: int,
        shape: tuple[int, ...],
        operands: Sequence[Node] = (),
        op: Op | None = None,
    ) -> Node:
        node = Node(len(self.graph.nodes), kind, name, nbytes, shape)
        node.operands = list(operands) if len(operands) < 2 else list(dict.fromkeys(operands))
        node.op = op
        node.fuses = kind == FUSIBLE
        self.graph.nodes.append(node)
        return node

    def param(self, value: Value) -> Node:
        return self.node(PARAM, "parameter", value.nbytes, value.shape)

    def read(self, value: Value) -> Node:
        node = self.env.get(value)
        if node is None:
            key: Any = ("literal", id(value))
            if value.size == 1:
                # PRNG keys and abstract data have no plain value.
                with contextlib.suppress(Exception):
                    key = ("literal", value.dtype, np.asarray(value.data).item())
            node = self.known.get(key)
            if node is None:
                node = self.node(CONSTANT, "constant", value.nbytes, value.shape)
                self.known[key] = node
            self.env[value] = node
        return node

    # -- programs ---------------------------------------------------------------------------------

    def run(self, program: Program) -> None:
        for op in program.ops:
            self.add(op)

    def add(self, op: Op) -> None:
        name = op.name
        if name in ("checkpoint", "custom_vjp_call", "custom_jvp_call", "shard_map") and op.regions:
            self.inline(op)
        elif name == "scan":
            self.scan(op)
        elif name == "while":
            self.while_loop(op)
        elif name == "cond":
            self.cond(op)
        else:
            self.plain(op)

    def inline(self, op: Op) -> None:
        region = op.regions[0]
        sources = [self.read(v) for v in op.inputs]
        outside = self.epoch
        apart = op.name == "checkpoint" and op.params.get("prevent_cse", True)
        if apart and op.params.get("differentiated", True) and self.keeps_barriers:
            # What is computed again is not shared with the first time, and waits for cotangents.
            self.epoch = len(self.graph.nodes) + 1
            sources = self.barrier(op, sources)
        for inner, source in zip(region.inputs, sources, strict=True):
            self.env[inner] = source
        self.run(region)
        self.epoch = outside
        for outer, inner in zip(op.outputs, region.outputs, strict=True):
            self.env[outer] = self.read(inner)

    @property
    def keeps_barriers(self) -> bool:
        """Whether the compiler honours optimisation barriers; the CPU's did not at first."""
        return self.kind != "cpu" or NEWER

    def barrier(self, op: Op, sources: list[Node]) -> list[Node]:
        """The same arrays, none of them to be had before all are."""
        group = self.node(OPAQUE, "barrier", 0, (), sources, op)
        passed: dict[Node, Node] = {}
        for position, source in enumerate(group.operands):
            if source.kind == CONSTANT:
                passed[source] = source
                continue
            node = self.node(ELEMENT, "barrier", source.nbytes, source.shape, [group], op)
            node.data, node.in_place = position, position
            passed[source] = node
        return [passed[source] for source in sources]

    def plain(self, op: Op) -> None:
        name, inputs = op.name, op.inputs
        out = op.outputs[0] if op.outputs else None
        if out is None:
            return
        if name in costs.VIEWS or name in ("random_wrap", "random_unwrap", "copy_p", "pvary"):
            for value, source in zip(op.outputs, inputs, strict=False):
                self.env[value] = self.read(source)
            return
        operands = [self.read(v) for v in inputs]
        if self.is_view(op, operands):
            self.env[out] = operands[0]
            return
        try:
            params = (
                tuple(op.params.values())
                if name != "broadcast_in_dim"
                else op.params.get("broadcast_dimensions")
            )
            key: Any = (
                name,
                self.epoch,
                out.shape,
                out.dtype,
                params,
                *[n.index for n in operands],
            )
            known = (
                self.known.get(key)
                if not op.effects and (NEWER or name not in COLLECTIVES)
                else None
            )
        except TypeError:  # params that cannot be hashed are never shared
            key = known = None
        if known is not None:
            if len(op.outputs) == 1:
                self.env[out] = known
            else:
                for value, element in zip(op.outputs, known.data, strict=False):
                    self.env[value] = element
            return
        node = self.make(op, operands)
        if key is not None:
            self.known[key] = node

    def is_view(self, op: Op, operands: list[Node]) -> bool:
        name, out, source = op.name, op.outputs[0], op.inputs[0] if op.inputs else None
        if source is None or not op.outputs or len(op.outputs) > 1:
            return False
        if (
            name == "broadcast_in_dim"
            or name == "slice"
            or name == "pad"
            or name.startswith("reduce_")
        ):
            return (
                out.size == source.size and out.dtype == source.dtype and name != "reduce_precision"
            )
        if name == "concatenate":
            return len(op.inputs) == 1
        if name == "convert_element_type":
            return out.dtype == source.dtype
        if name == "transpose":
            permutation = op.params["permutation"]
            moved = [d for d in permutation if source.shape[d] > 1]
            if moved == sorted(moved):
                return True
            # The transpose of a plain matrix product is the product of the swapped operands.
            return operands[0].name == "dot" and out.ndim == 2 and len(operands[0].shape) == 2
        return False

    def make(self, op: Op, operands: list[Node]) -> Node:
        """The node (or nodes) of an op; binds its outputs."""
        name, out = op.name, op.outputs[0]
        if name == "dot_general":
            node = self.dot(op, operands)
        elif name == "conv_general_dilated" and self.kind == "cpu":
            node = self.convolution(op, operands)
        elif name in RANDOM and self.kind == "cpu" and operands:
            node = self.random(op, operands)
        elif name == "select_and_scatter_add" and self.kind == "cpu":
            node = self.select_and_scatter(op, operands)
        elif name in costs.REDUCTIONS and not name.startswith("arg"):
            node = self.reduce(op, operands)
        elif (
            name in costs.ELEMENTWISE
            or name in costs.TRANSCENDENTAL
            or name in _FUSIBLE_MOVES
            or name in ("broadcast_in_dim", "transpose", "gather", "all_slice", "axis_offset")
        ):
            node = self.fusible(op, operands)
        else:
            return self.opaque(op, operands)
        self.env[out] = node
        return node

    def fusible(self, op: Op, operands: list[Node]) -> Node:
        name, out = op.name, op.outputs[0]
        if name in ("slice", "dynamic_slice", "all_slice") and _uniform(operands[0]):
            name, operands = (
                "broadcast_in_dim",
                operands[0].operands,
            )  # a part of it is uniform as well
        node = self.node(FUSIBLE, name, out.nbytes, out.shape, operands, op)
        node.flops, node.transcendentals = costs.op_flops(op)
        floating = getattr(out.dtype, "kind", "f") in "fcV"
        node.expensive = name in _EXPENSIVE and (floating or name not in ("div", "rem"))
        node.elementwise = (
            name in costs.ELEMENTWISE or name in costs.TRANSCENDENTAL or name == "clamp"
        )
        node.reuses = name in ("broadcast_in_dim", "gather")
        node.in_place = 0 if name in _IN_PLACE else -1
        full = 0
        direct = []
        for value, operand in zip(op.inputs, operands, strict=False):
            if value.shape == operand.shape:
                direct.append(operand)
            if operand.name in ("broadcast_in_dim", "iota") or (
                operand.kind == CONSTANT and value.size == 1
            ):
                continue
            full += value.ndim >= out.ndim
        node.unary = full <= 1
        node.direct = frozenset(direct)
        return node

    def reduce(self, op: Op, operands: list[Node]) -> Node:
        out, source = op.outputs[0], op.inputs[0]
        axes = op.params["axes"]
        shape = list(source.shape)
        flops, transcendentals = costs.op_flops(op)
        if self.kind == "cpu" and any(shape[a] > REDUCE_WINDOW for a in axes):
            for a in axes:
                shape[a] = -(-shape[a] // REDUCE_WINDOW) if shape[a] > REDUCE_WINDOW else 1
            size = math.prod(shape) * source.dtype.itemsize
            window = self.node(OPAQUE, "reduce_window", size, tuple(shape), operands[:1], op)
            window.flops, window.transcendentals = flops, transcendentals
            operands, flops, transcendentals = [window], float(math.prod(shape)), 0.0
        node = self.node(FUSIBLE, "reduce", out.nbytes, out.shape, operands, op)
        node.flops, node.transcendentals = flops, transcendentals
        node.expensive = True
        if self.kind == "cpu":
            # Only a reduction that includes the minor dimension is worth fusing.
            node.fuses = node.feeds = source.ndim - 1 in axes
        return node

    def dot(self, op: Op, operands: list[Node]) -> Node:
        (lhs_contract, rhs_contract), (lhs_batch, rhs_batch) = op.params["dimension_numbers"]
        out = op.outputs[0]
        sides = []
        canonical = (
            len(lhs_contract) == 1
            and tuple(lhs_batch) == tuple(rhs_batch) == tuple(range(len(lhs_batch)))
            and all(v.ndim <= len(lhs_batch) + 2 for v in op.inputs)
        )
        parts = (lhs_batch, lhs_contract, False), (rhs_batch, rhs_contract, True)
        for value, operand, (batch, contract, contract_first) in zip(
            op.inputs, operands, parts, strict=False
        ):
            if not canonical:
                operand = self.canonical(op, value, operand, batch, contract, contract_first)
            if self.kind == "cpu" and str(value.dtype) in _HALF:
                operand = self.convert(op, operand, 2)
            sides.append(operand)
        half = self.kind == "cpu" and str(out.dtype) in _HALF
        node = self.node(OPAQUE, "dot", out.nbytes * (2 if half else 1), out.shape, sides, op)
        node.flops, node.transcendentals = costs.op_flops(op)
        return self.convert(op, node, 0.5) if half else node

    def random(self, op: Op, operands: list[Node]) -> Node:
        """Threefry: two arrays of counters go through a loop, in place; then they are mixed."""
        out = op.outputs[0]
        half = 4 * out.size
        words = [self.node(FUSIBLE, "iota_add", half, out.shape, operands, op) for _ in range(2)]
        rounds = self.node(OPAQUE, op.name, 0, (), words, op)
        rounds.flops, rounds.transcendentals = costs.op_flops(op)
        results = []
        for position in range(2):
            element = self.node(ELEMENT, op.name, half, out.shape, [rounds], op)
            element.data, element.in_place = position, position
            results.append(element)
        node = self.node(FUSIBLE, "xor", out.nbytes, out.shape, results, op)
        node.elementwise, node.unary = True, False
        node.direct = frozenset(results)
        return node

    def convolution(self, op: Op, operands: list[Node]) -> Node:
        """Operands and result in the only order that the CPU's convolution knows, features last."""
        dims = op.params["dimension_numbers"]
        out = op.outputs[0]
        image_order = (dims.lhs_spec[0], *dims.lhs_spec[2:], dims.lhs_spec[1])
        window_order = (*dims.rhs_spec[2:], dims.rhs_spec[1], dims.rhs_spec[0])
        image = self.ordered(op, op.inputs[0], operands[0], image_order)
        window = self.ordered(op, op.inputs[1], operands[1], window_order)
        order = (dims.out_spec[0], *dims.out_spec[2:], dims.out_spec[1])
        shape = tuple(out.shape[d] for d in order)
        node = self.node(OPAQUE, op.name, out.nbytes, shape, [image, window], op)
        node.flops, node.transcendentals = costs.op_flops(op)
        moved = [d for d in order if out.shape[d] > 1]
        if moved != sorted(moved):
            node = self.node(FUSIBLE, "transpose", out.nbytes, out.shape, [node], op)
        return node

    def ordered(self, op: Op, value: Value, operand: Node, order: tuple[int, ...]) -> Node:
        """The operand with its dimensions in another order: a copy, unless nothing really moves."""
        moved = [d for d in order if value.shape[d] > 1]
        if moved == sorted(moved):
            return operand
        key = ("ordered", operand.index, order, value.shape)
        if key not in self.known:
            shape = tuple(value.shape[d] for d in order)
            self.known[key] = self.node(FUSIBLE, "transpose", value.nbytes, shape, [operand], op)
        return self.known[key]

    def select_and_scatter(self, op: Op, operands: list[Node]) -> Node:
        """The gradient of a maximum over windows: find where each maximum was, scatter there."""
        source, operand = op.inputs
        out = op.outputs[0]
        places = []
        for dimension in range(operand.ndim):
            key = ("place", operand.shape, dimension)
            if key not in self.known:
                self.known[key] = self.node(FUSIBLE, "iota", 4 * operand.size, operand.shape)
            places.append(self.known[key])
        window = self.node(OPAQUE, "reduce_window_max", 0, (), [operands[1], *places], op)
        found = []
        for position in range(operand.ndim + 1):
            size = source.nbytes if position == 0 else 4 * source.size
            element = self.node(ELEMENT, "reduce_window_max", size, source.shape, [window], op)
            element.data = position
            found.append(element)
        shape = (source.size, operand.ndim)
        index = self.node(
            FUSIBLE, "concatenate", 4 * source.size * operand.ndim, shape, found[1:], op
        )
        updates = self.ordered(op, source, operands[0], tuple(range(source.ndim)))
        node = self.node(
            OPAQUE, "scatter-add", out.nbytes, out.shape, [self.zeros(out), index, updates], op
        )
        node.in_place = 0
        node.flops, node.transcendentals = costs.op_flops(op)
        return node

    def convert(self, op: Op, operand: Node, factor: float) -> Node:
        """The operand in another precision: `factor` times its bytes."""
        key = ("convert", operand.index, factor)
        if key not in self.known:
            node = self.node(
                FUSIBLE,
                "convert_element_type",
                int(operand.nbytes * factor),
                operand.shape,
                [operand],
                op,
            )
            node.elementwise = True
            node.direct = frozenset([operand])
            node.flops = float(math.prod(operand.shape))
            self.known[key] = node
        return self.known[key]

    def canonical(
        self, op: Op, value: Value, operand: Node, batch: Any, contract: Any, contract_first: bool
    ) -> Node:
        """The operand with batch, then free, then contracting dimensions (contracting first on the
        right)."""
        free = [d for d in range(value.ndim) if d not in batch and d not in contract]
        middle = [*contract, *free] if contract_first else [*free, *contract]
        order = [d for d in (*batch, *middle) if value.shape[d] > 1]
        if order == sorted(order):
            return operand
        swapped = [*free, *contract] if contract_first else [*contract, *free]
        simple = len(free) == 1 and len(contract) == 1
        other = [d for d in (*batch, *swapped) if value.shape[d] > 1]
        if simple and other == sorted(other):
            return operand  # the product reads it transposed
        key = ("transposed", operand.index, tuple(order), value.shape)
        if key not in self.known:
            shape = tuple(value.shape[d] for d in (*batch, *middle))
            node = self.node(FUSIBLE, "transpose", operand.nbytes, shape, [operand], op)
            self.known[key] = node
        return self.known[key]

    def opaque(self, op: Op, operands: list[Node]) -> Node:
        if self.kind == "cpu" and op.name in ("all_gather", "reduce_scatter", "all_to_all"):
            return self.laid_out(op, operands)
        sizes = [v.nbytes for v in op.outputs]
        if len(sizes) == 1:
            node = self.node(OPAQUE, op.name, sizes[0], op.outputs[0].shape, operands, op)
            self.env[op.outputs[0]] = node
        else:
            node = self.node(OPAQUE, op.name, 0, (), operands, op)
            node.data = [self.element(node, i, v) for i, v in enumerate(op.outputs)]
        node.flops, node.transcendentals = costs.op_flops(op)
        if op.name.startswith("scatter"):
            node.in_place = 0
        return node

    def laid_out(self, op: Op, operands: list[Node]) -> Node:
        """Collectives that need the split dimension outermost: copies around them where it is not.

        An all_to_all always cuts its operand into pieces and puts those it gets together.
        """
        (source,), (out,) = op.inputs, op.outputs
        if op.name == "all_to_all":
            copied = True
        else:
            copied = math.prod(out.shape[: op.params["dim"]]) > 1
        operand = operands[0]
        if copied:
            key = ("laid out", operand.index, source.shape, op.params.get("dim"))
            if key not in self.known:
                self.known[key] = self.node(
                    FUSIBLE, "transpose", source.nbytes, source.shape, [operand], op
                )
            operand = self.known[key]
        node = self.node(OPAQUE, op.name, out.nbytes, out.shape, [operand], op)
        node.flops, node.transcendentals = costs.op_flops(op)
        if copied:
            node = self.node(FUSIBLE, "transpose", out.nbytes, out.shape, [node], op)
        self.env[out] = node
        return node

    def element(self, group: Node, position: int, value: Value) -> Node:
        node = self.node(ELEMENT, group.name, value.nbytes, value.shape, [group], group.op)
        node.data = position
        self.env[value] = node
        return node

    # -- control flow -----------------------------------------------------------------------------

    def scan(self, op: Op) -> None:
        consts, carry = op.params["num_consts"], op.params["num_carry"]
        region = op.regions[0]
        inner = _Builder(self.kind)
        counter = inner.node(PARAM, "counter", 4, ())
        params: list[Node] = []
        for i, (inside, outside) in enumerate(zip(region.inputs, op.inputs, strict=False)):
            param = inner.param(outside)
            params.append(param)
            if i < consts and outside.layout is not None and _uniform(self.read(outside)):
                # Loops of partitioned programs make such constants themselves.
                inner.env[inside] = inner.zeros(outside, self.read(outside).operands)
            elif i < consts + carry:
                inner.env[inside] = param
            else:
                piece = inner.node(
                    FUSIBLE, "dynamic_slice", inside.nbytes, inside.shape, [param, counter], op
                )
                inner.env[inside] = piece
        stacks = [inner.param(v) for v in op.outputs[carry:]]
        inner.graph.params = [counter, *params, *stacks]
        inner.run(region)
        results = [inner.read(v) for v in region.outputs]
        updates = []
        for stack, piece in zip(stacks, results[carry:], strict=False):
            update = inner.node(
                FUSIBLE,
                "dynamic_update_slice",
                stack.nbytes,
                stack.shape,
                [stack, piece, counter],
                op,
            )
            update.in_place = 0
            update.unary = False
            updates.append(update)
        inner.graph.outputs = [*results[:carry], *updates]
        inner.graph.carried = [*params[consts : consts + carry], *stacks]
        inner.graph.trips = int(op.params["length"])
        _finish(inner.graph)
        zeros = [self.zeros(v) for v in op.outputs[carry:]]
        operands = [self.read(v) for v in op.inputs]
        starts = operands[consts : consts + carry]
        read = [
            n for i, n in enumerate(operands) if params[i].users or consts <= i < consts + carry
        ]
        self.loop(op, [*read, *zeros], inner.graph, [*starts, *zeros])

    def zeros(self, value: Value, operands: Sequence[Node] = ()) -> Node:
        """A fresh array filled with one number: zero, or the scalar `operands` of another graph."""
        key = ("zeros", value.shape, str(value.dtype), *[n.index for n in operands])
        if key not in self.known:
            self.known[key] = self.node(FUSIBLE, "broadcast_in_dim", value.nbytes, value.shape)
        return self.known[key]

    def while_loop(self, op: Op) -> None:
        skip, consts = op.params["cond_nconsts"], op.params["body_nconsts"]
        region = op.regions[1]
        inner = _Builder(self.kind)
        for inside in region.inputs:
            inner.env[inside] = inner.param(inside)
        inner.graph.params = list(inner.graph.nodes)
        inner.run(region)
        inner.graph.outputs = [inner.read(v) for v in region.outputs]
        inner.graph.carried = inner.graph.params[consts:]
        _finish(inner.graph)
        operands = [self.read(v) for v in op.inputs]
        self.loop(op, operands, inner.graph, operands[skip + consts :])

    def loop(self, op: Op, operands: list[Node], body: Graph, carried: list[Node]) -> None:
        node = self.node(LOOP, op.name, 0, (), operands, op)
        node.body = (body,)
        node.data = carried
        for i, value in enumerate(op.outputs):
            self.element(node, i, value)

    def cond(self, op: Op) -> None:
        operands = [self.read(v) for v in op.inputs]
        node = self.node(BRANCH, "cond", 0, (), operands, op)
        bodies = []
        for region in op.regions:
            inner = _Builder(self.kind)
            for inside in region.inputs:
                inner.env[inside] = inner.param(inside)
            inner.graph.params = list(inner.graph.nodes)
            inner.run(region)
            inner.graph.outputs = [inner.read(v) for v in region.outputs]
            _finish(inner.graph)
            bodies.append(inner.graph)
        node.body = tuple(bodies)
        for i, value in enumerate(op.outputs):
            self.element(node, i, value)
