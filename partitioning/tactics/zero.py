"""Tactics that split replicated arrays: optimizer state, gradients, parameters."""

from __future__ import annotations

import dataclasses

from ..decide.actions import FIRST_DIVISIBLE, REPLICATED, Action, Context
from ..ir.program import Value
from .structure import gradients, optimizer_state, parameters


@dataclasses.dataclass(frozen=True)
class Zero1:
    """Each device keeps and updates its share of the optimizer state; gradients are whole
    everywhere.

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
    """Each device keeps its share of the optimizer state and reduces only its share of the
    gradients.

    Attributes:
      axis: the mesh axis, usually that of the batch.
      name: what the plan calls it.
    """

    axis: str
    name: str = "zero2"

    def actions(self, context: Context) -> list[Action]:
        whole = [Action(v, self.axis, REPLICATED) for v in parameters(context)]
        shares = [Action(v, self.axis, FIRST_DIVISIBLE) for v in gradients(context)]
        return _with_rest(context, whole + shares, optimizer_state(context), self.axis)


@dataclasses.dataclass(frozen=True)
class Zero3:
    """Each device keeps its share of parameters, gradients and optimizer state; parameters are
    gathered for use.

    Attributes:
      axis: the mesh axis, usually that of the batch.
      name: what the plan calls it.
      least: bytes of the smallest array that is split: to gather a few takes as long as many.
    """

    axis: str
    name: str = "zero3"
    least: int = 0

    def actions(self, context: Context) -> list[Action]:
        held, state = (
            [v for v in values if v.nbytes >= self.least]
            for values in (parameters(context), optimizer_state(context))
        )
        shares = [Action(v, self.axis, FIRST_DIVISIBLE) for v in held]
        return _with_rest(context, shares, state, self.axis)


def _with_rest(
    context: Context, actions: list[Action], state: list[Value], axis: str
) -> list[Action]:
    """Adds shares of the state arrays that propagation from `actions` would leave open."""
    with context.trial(actions):
        rest = [v for v in state if axis not in context.state.tiles.get(v, {})]
    return actions + [Action(v, axis, FIRST_DIVISIBLE) for v in rest]
