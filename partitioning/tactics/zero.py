"""Tactics that split what is the same on every device: optimizer state, gradients, parameters."""

from __future__ import annotations

import dataclasses

from ..actions import FIRST_DIVISIBLE, REPLICATED, Action, Context
from .structure import gradients, optimizer_state, parameters


@dataclasses.dataclass(frozen=True)
class Zero1:
    """Each device keeps and updates its share of the optimizer state; gradients are whole everywhere.

    Attributes:
      axis: the mesh axis, usually that of the batch.
      name: what the plan calls it.
    """

    axis: str
    name: str = "zero1"

    def actions(self, context: Context) -> list[Action]:
        whole = [
            Action(v, self.axis, REPLICATED) for v in (*parameters(context), *gradients(context))
        ]
        return whole + [Action(v, self.axis, FIRST_DIVISIBLE) for v in optimizer_state(context)]


@dataclasses.dataclass(frozen=True)
class Zero2:
    """Each device keeps its share of the optimizer state and reduces only its share of the gradients.

    Attributes:
      axis: the mesh axis, usually that of the batch.
      name: what the plan calls it.
    """

    axis: str
    name: str = "zero2"

    def actions(self, context: Context) -> list[Action]:
        whole = [Action(v, self.axis, REPLICATED) for v in parameters(context)]
        return whole + [Action(v, self.axis, FIRST_DIVISIBLE) for v in optimizer_state(context)]


@dataclasses.dataclass(frozen=True)
class Zero3:
    """Each device keeps its share of parameters, gradients and optimizer state; parameters are gathered for use.

    Attributes:
      axis: the mesh axis, usually that of the batch.
      name: what the plan calls it.
    """

    axis: str
    name: str = "zero3"

    def actions(self, context: Context) -> list[Action]:
        arrays = [*parameters(context), *optimizer_state(context)]
        return [Action(v, self.axis, FIRST_DIVISIBLE) for v in arrays]
