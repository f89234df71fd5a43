"""Tactics that split replicated arrays: optimizer state, gradients, parameters."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from ..decide.actions import FIRST_DIVISIBLE, REPLICATED, Action, Context
from ..ir.program import Value


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
        parts = context.graph.structure
        whole = [Action(v, self.axis, REPLICATED) for v in parts.parameters + parts.gradients]
        return whole + [Action(v, self.axis, FIRST_DIVISIBLE) for v in parts.optimizer_state]


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
        parts = context.graph.structure
        whole = [Action(v, self.axis, REPLICATED) for v in parts.parameters]
        shares = [Action(v, self.axis, FIRST_DIVISIBLE) for v in parts.gradients]
        return _with_rest(context, whole + shares, parts.optimizer_state, self.axis)


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
        parts = context.graph.structure
        held, state = (
            [v for v in values if v.nbytes >= self.least]
            for values in (parts.parameters, parts.optimizer_state)
        )
        shares = [Action(v, self.axis, FIRST_DIVISIBLE) for v in held]
        return _with_rest(context, shares, state, self.axis)


def _with_rest(
    context: Context, actions: list[Action], state: Sequence[Value], axis: str
) -> list[Action]:
    """Adds shares of the state arrays that propagation from `actions` would leave open."""
    with context.trial(actions):
        rest = [v for v in state if axis not in context.state.tiles.get(v, {})]
    return actions + [Action(v, axis, FIRST_DIVISIBLE) for v in rest]
