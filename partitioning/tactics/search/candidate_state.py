"""The state of a candidate as an estimate knows it, extended as more is decided."""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

import numpy as np

from ...decide.node import Node
from ...ir.program import Layout, Value
from .timeline import Exchange

#: No axes.
NO_AXES: frozenset[str] = frozenset()


class Tiling(NamedTuple):
    """The tiling of a value.

    Attributes:
      layout: the axes of each dimension.
      share: the share of the value that a device holds.
      number: an id, the same for equal layouts and quicker to compare.
      axes: the axes of the layout.
      replicated: the axes over which it must be replicated.
    """

    layout: Layout
    share: float
    number: int
    axes: frozenset[str]
    replicated: frozenset[str]


class ReshardRequest(NamedTuple):
    """A value that a node needs in another layout.

    Attributes:
      value: the value.
      target: the layout that the node needs.
      sliced: the axes over which it is sliced for that.
      transfer: the exchange that brings it there; nothing is sent where that takes no time.
      is_result: True if it is a result of the node, brought to the layout that it is kept in.
    """

    value: Value
    target: Layout
    sliced: frozenset[str]
    transfer: Exchange
    is_result: bool


class NodeCost(NamedTuple):
    """The collectives and shares of a node after the decisions on it and on its values.

    Attributes:
      reshards: the values that it needs in another layout.
      pending: the axes over which its results are still to be reduced.
      work_share: the share of its work that a device does.
      operand_shares: of a product, the share of each operand that it reads.
      result_axes: for each result the axes over which it is tiled as it is made; last, those of
        the node.
      result_shares: for each result the share of it that is made, and the share of it that stays
        in memory.
    """

    reshards: list[ReshardRequest]
    pending: tuple[str, ...]
    work_share: float
    operand_shares: tuple[float, ...]
    result_axes: tuple[frozenset[str], ...]
    result_shares: tuple[float, ...]


@dataclasses.dataclass(frozen=True)
class CandidateState:
    """The layouts, node costs and shares that follow from decisions; more are entered on a copy.

    Attributes:
      tilings: the tilings of values.
      costs: the costs of nodes with decisions on them or on their values.
      reshards: for each node the values that it needs in another layout.
      pending: for each node the axes over which its results are to be reduced.
      shares: a device's shares of values, of nodes' work, of products' operands, and of results as
        they are made.
    """

    tilings: dict[Value, Tiling]
    costs: dict[Node, NodeCost]
    reshards: dict[Node, list[ReshardRequest]]
    pending: dict[Node, tuple[str, ...]]
    shares: np.ndarray

    def copy(self) -> CandidateState:
        return CandidateState(
            self.tilings.copy(),
            self.costs.copy(),
            self.reshards.copy(),
            self.pending.copy(),
            self.shares.copy(),
        )
