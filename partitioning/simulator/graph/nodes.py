"""Arrays that may become buffers: the nodes of the compiler's view of a program."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import jax

from ...ir.program import Op
from ...rules import traits_of

# What a node is, as far as fusion is concerned.
PARAM, CONSTANT, FUSIBLE, OPAQUE, LOOP, BRANCH, ELEMENT = range(7)

#: A reduction over a longer dimension first reduces blocks of this length.
REDUCE_WINDOW = 32

#: Later CPU compilers keep optimisation barriers and combine all_reduces.
NEWER = tuple(int(part) for part in jax.__version__.split(".")[:2]) >= (0, 7)


@dataclasses.dataclass(eq=False, repr=False, slots=True)
class ArrayNode:
    """One array (or, for a loop or a branch, a group of arrays) of the compiled program.

    Attributes:
      index: position in the graph, after every operand.
      kind: one of the constants above.
      name: the op's name; what a compiler makes besides is called as the primitive that does it.
      nbytes: size of the array; 0 for loops and branches: their elements are nodes of their own.
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
      reshaped: operands used through a view, with its shape.
      permutes: it only changes the order of dimensions.
      branches: its code differs from element to element, and is not shared by several uses.
      in_place: index in `operands` of the array that the result must overwrite, or -1.
      fuses: True if it may take producers into its kernel.
      whole: operands that it never takes into its kernel.
      feeds: True if it may go into the kernels of its users.
      late: the compiler makes it anew, which puts it behind the other users of its operands.
      library: where a library computes it: the node that its kernel writes.
      body: for loops and branches, the graphs inside.
      data: an element's position, a loop's carries, a group's elements.
    """

    index: int
    kind: int
    name: str
    nbytes: int
    shape: tuple[int, ...]
    operands: list[ArrayNode] = dataclasses.field(default_factory=list)
    users: list[ArrayNode] = dataclasses.field(default_factory=list)
    op: Op | None = None
    flops: float = 0.0
    transcendentals: float = 0.0
    expensive: bool = False
    reuses: bool = False
    elementwise: bool = False
    unary: bool = True
    direct: frozenset[ArrayNode] = frozenset()
    reshaped: dict[ArrayNode, tuple[int, ...]] = dataclasses.field(default_factory=dict)
    permutes: bool = False
    branches: bool = False
    in_place: int = -1
    fuses: bool = False
    whole: frozenset[ArrayNode] = frozenset()
    feeds: bool = True
    late: bool = False
    library: ArrayNode | None = None
    body: tuple[ArrayGraph, ...] = ()
    data: Any = None

    def __repr__(self) -> str:
        return f"ArrayNode({self.index} {self.name} {self.shape} {self.nbytes})"


@dataclasses.dataclass(eq=False, repr=False)
class ArrayGraph:
    """Nodes in an order that respects dependencies, inputs and results.

    Attributes:
      nodes: every node.
      params: one per input of the program, in order.
      outputs: one per result; an input or a constant may be a result.
      trips: for a loop's body, how often it runs; else 1.
      carried: for a loop's body, per result the parameter that it goes back to.
    """

    nodes: list[ArrayNode] = dataclasses.field(default_factory=list)
    params: list[ArrayNode] = dataclasses.field(default_factory=list)
    outputs: list[ArrayNode] = dataclasses.field(default_factory=list)
    trips: int = 1
    carried: list[ArrayNode] = dataclasses.field(default_factory=list)

    def release(self) -> None:
        """Forgets who reads what, here and in loops, so that the nodes go with their last use.

        Nodes that know their readers and parts are in circles, which a collector alone would free.
        """
        for node in self.nodes:
            node.users.clear()
            node.data = node.library = None
            for body in node.body:
                body.release()


def finish(graph: ArrayGraph) -> None:
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


def uniform(node: ArrayNode) -> bool:
    """True if every element of a node is the same."""
    return traits_of(node.name).broadcasts and all(math.prod(n.shape) == 1 for n in node.operands)
