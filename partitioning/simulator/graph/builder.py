"""A graph in the making: values bound to nodes, equal computations shared."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ...ir.program import Op, Program, Value
from .accumulate import scatter_onto_sums
from .library import leave_to_library
from .nodes import CONSTANT, ELEMENT, FUSIBLE, NEWER, PARAM, ArrayGraph, ArrayNode, finish
from .reshapes import move_reshapes
from .transposes import move_transposes


class GraphBuilder:
    """A graph in the making.

    Args:
      kind: the device's kind.
      lower: adds the nodes of one op.

    Attributes:
      graph: what has been made so far.
      env: the node that holds each value.
      known: nodes by what they compute, so that equal computations are shared.
      epoch: computations of different epochs are not shared.
      columns: nodes whose matrices lie column by column, as routines for factors want them.
    """

    def __init__(self, kind: str, lower: Callable[[GraphBuilder, Op], None]):
        self.kind = kind
        self.lower = lower
        self.graph = ArrayGraph()
        self.env: dict[Value, ArrayNode] = {}
        self.known: dict[Any, ArrayNode] = {}
        self.epoch = 0
        self.columns: set[ArrayNode] = set()

    def inside(self) -> GraphBuilder:
        """A builder for the body of a loop or a branch."""
        return GraphBuilder(self.kind, self.lower)

    def node(
        self,
        kind: int,
        name: str,
        nbytes: int,
        shape: tuple[int, ...],
        operands: Sequence[ArrayNode] = (),
        op: Op | None = None,
    ) -> ArrayNode:
        node = ArrayNode(len(self.graph.nodes), kind, name, nbytes, shape)
        node.operands = list(operands) if len(operands) < 2 else list(dict.fromkeys(operands))
        node.op = op
        node.fuses = kind == FUSIBLE
        self.graph.nodes.append(node)
        return node

    def param(self, value: Value) -> ArrayNode:
        return self.node(PARAM, "parameter", value.nbytes, value.shape)

    def read(self, value: Value) -> ArrayNode:
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

    def run(self, program: Program) -> None:
        """Adds every op of a program."""
        for op in program.ops:
            self.lower(self, op)

    def finish(self) -> ArrayGraph:
        """The graph, once every op has been added and its results are known."""
        if self.kind == "cpu":
            scatter_onto_sums(self.graph)
        if self.kind == "cpu" and NEWER:
            move_transposes(self.graph)
        finish(self.graph)
        if self.kind == "cpu":
            move_reshapes(self.graph)
        if self.kind == "cpu" and NEWER:
            leave_to_library(self.graph)
        return self.graph

    @property
    def keeps_barriers(self) -> bool:
        """True if the compiler honours optimisation barriers; the CPU's did not at first."""
        return self.kind != "cpu" or NEWER

    def element(self, group: ArrayNode, position: int, value: Value) -> ArrayNode:
        node = self.node(ELEMENT, group.name, value.nbytes, value.shape, [group], group.op)
        node.data = position
        self.env[value] = node
        return node

    def zeros(self, value: Value, operands: Sequence[ArrayNode] = ()) -> ArrayNode:
        """A fresh array filled with one number: zero, or the scalar `operands` of another graph."""
        key = ("zeros", value.shape, str(value.dtype), *[n.index for n in operands])
        if key not in self.known:
            self.known[key] = self.node(FUSIBLE, "broadcast_in_dim", value.nbytes, value.shape)
        return self.known[key]

    def is_zero(self, value: Value, node: ArrayNode) -> bool:
        """True of the number zero."""
        return value.ndim == 0 and self.known.get(("literal", value.dtype, 0)) is node

    def spread_zero(self, value: Value, node: ArrayNode, out: Value) -> ArrayNode:
        """The node that an op reads for an operand: zeros of the result's shape for the number
        zero, if there are any.

        The compiler for GPUs makes the same zeros once, and leaves them in memory where one of
        their readers, as a loop that fills them or a scatter, cannot compute them itself.
        """
        if not self.is_zero(value, node):
            return node
        return self.known.get(("zeros", out.shape, str(out.dtype)), node)
