"""Tactics that split the inputs of a step: examples, or positions of a sequence."""

from __future__ import annotations

import dataclasses
from collections import Counter

from ..decide.actions import REPLICATED, Action, Context, ForceFactor, Trial, label
from ..decide.structure import is_matmul
from ..ir.program import Value


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
    values = [v for v in context.graph.structure.data if v.ndim > dim]
    if names:
        return [v for v in values if v.path.split("/")[0] in names]
    if not values:
        return []
    sizes = Counter(v.shape[dim] for v in values for _ in range(max(v.ndim - dim, 1)))
    most = max(sizes, key=lambda n: (sizes[n], n))
    return [v for v in values if v.shape[dim] == most]


@dataclasses.dataclass(frozen=True)
class SequenceParallel:
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

    def actions(self, context: Context) -> list[Action | ForceFactor]:
        """Tiles positions; keeps whole the second operand of products that pair them.

        In attention those are keys and values: each device then holds its share of the queries, and
          of scores.
        """
        wanted = [
            v
            for v in _fed(context, self.inputs, self.dim)
            if _divides(context, v, self.dim, self.axis)
        ]
        actions: list[Action | ForceFactor] = [Action(v, self.axis, self.dim) for v in wanted]
        for _ in range(8):
            with context.trial(actions) as trial:
                whole = _paired(trial, self.axis)
                sums = _summed(trial, self.axis)
            if not whole and not sums:
                break
            # The backward pass is looked at only once the forward pass is as it will be.
            actions += [Action(v, self.axis, REPLICATED) for v in whole] or sums
        return actions


def _divides(context: Context, value: Value, dim: int, axis: str) -> bool:
    return context.state.divides(value, dim, axis)


def _paired(trial: Trial, axis: str) -> list[Value]:
    """Operands to keep whole: those by which a forward product pairs positions with positions.

    Either both operands ask for a dimension of their own, as queries and keys do, or the product
    would sum over positions, as that of scores and values does.
    """
    tile_of = trial.context.tile_of
    found: dict[Value, None] = {}
    for conflict in trial.conflicts:
        op = conflict.node.op
        if op is not None and is_matmul(op) and not op.backward:
            left, right = op.inputs
            if left is not right and all(tile_of(v, axis) is not None for v in (left, right)):
                found[right] = None
    when = {d.value: i for i, d in enumerate(trial.decisions) if d.axis == axis}
    for node, factor in trial.assigned:
        op = node.op
        if op is None or not is_matmul(op) or op.backward or factor not in node.rule.monoids:
            continue
        known = [v for v in op.inputs if tile_of(v, axis) is not None and v in when]
        if known:
            found[min(known, key=when.__getitem__)] = None
    return list(found)


def _summed(trial: Trial, axis: str) -> list[Action | ForceFactor]:
    """Sums over the device's positions, for products of the backward pass that could also tile.

    What is asked of their results is then cut from the sum.
    """
    found: list[Action | ForceFactor] = []
    for conflict in trial.conflicts:
        op = conflict.node.op
        if op is not None and is_matmul(op) and op.backward:
            factor = next((f for f in conflict.factors if f in conflict.node.rule.monoids), None)
            if factor is not None:
                found.append(ForceFactor(conflict.node, axis, factor))
    return found
