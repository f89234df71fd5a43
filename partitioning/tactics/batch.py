"""Tactics that split what a step is fed: examples, or positions of a sequence."""

from __future__ import annotations

import dataclasses
from collections import Counter

from ..actions import REPLICATED, Action, Context, label
from ..graph import Node
from ..program import Value
from .structure import data


@dataclasses.dataclass(frozen=True)
class BatchParallel:
    """Each device takes its share of the batch; gradients are summed.

    Attributes:
      axis: the mesh axis.
      dim: the batch dimension of the arrays that are fed.
      inputs: names of the arguments that are fed; by default every argument that is not state.
      name: what the plan calls it.
    """

    axis: str
    dim: int = 0
    inputs: tuple[str, ...] = ()
    name: str = "batch parallel"

    def actions(self, context: Context) -> list[Action]:
        """Tiles the batch dimension of every array that is fed and has it.

        Raises:
          ValueError: where no array is fed that has such a dimension.
        """
        fed = _fed(context, self.inputs, self.dim)
        if not fed:
            raise ValueError(
                f"tactic {self.name!r}: no argument besides the state has a dimension "
                f"{self.dim}; the inputs are "
                f"{', '.join(label(v) for v in context.inputs[:6])}. Name the batch: "
                "pt.tactics.batch_parallel(axis, inputs=('batch',))"
            )
        return [Action(v, self.axis, self.dim, firm=True) for v in fed]


def _fed(context: Context, names: tuple[str, ...], dim: int) -> list[Value]:
    """Arrays that are fed and share the most common size of `dim`; PRNG keys and the like have
    another.
    """
    values = [v for v in data(context) if v.ndim > dim]
    if names:
        return [v for v in values if v.path.split("/")[0] in names]
    if not values:
        return []
    sizes = Counter(v.shape[dim] for v in values for _ in range(max(v.ndim - dim, 1)))
    most = max(sizes, key=lambda n: (sizes[n], n))
    return [v for v in values if v.shape[dim] == most]


@dataclasses.dataclass(frozen=True)
class Sequence:
    """Each device takes its share of the positions; what attends to all of them is gathered.

    Attributes:
      axis: the mesh axis.
      dim: the dimension of positions in the arrays that are fed.
      inputs: names of the arguments that are fed; by default every argument that is not state.
      name: what the plan calls it.
    """

    axis: str
    dim: int = 1
    inputs: tuple[str, ...] = ()
    name: str = "sequence"

    def actions(self, context: Context) -> list[Action]:
        """Tiles positions; keeps whole the second operand of products that pair them.

        In attention those are keys and values: each device then holds its share of the queries, and
          of scores.
        """
        wanted = [
            v
            for v in _fed(context, self.inputs, self.dim)
            if _divides(context, v, self.dim, self.axis)
        ]
        actions = [Action(v, self.axis, self.dim) for v in wanted]
        for _ in range(64):
            with context.trial(actions) as trial:
                whole = next(
                    filter(None, (_paired(c.node, context, self.axis) for c in trial.conflicts)),
                    None,
                )
            if whole is None:
                break
            actions.append(Action(whole, self.axis, REPLICATED))
        return actions


def _divides(context: Context, value: Value, dim: int, axis: str) -> bool:
    return context.state.divides(value, dim, axis)


def _paired(node: Node, context: Context, axis: str) -> Value | None:
    """The operand to keep whole where a contraction should tile two dimensions over one axis."""
    if node.op is None or node.op.name != "dot_general":
        return None
    left, right = node.op.inputs
    tiles = context.state.tiles
    if all(tiles.get(v, {}).get(axis, -1) >= 0 for v in (left, right)) and left is not right:
        return right
    return None
