"""Tactics that split weights together with the work on them: matrices in pairs, tables, experts."""

from __future__ import annotations

import dataclasses

from ..decide.actions import Action, Context, label
from ..decide.graph import Node
from ..ir.program import Value
from ..rules import WHOLE, traits_of
from .structure import origins, weight_products


@dataclasses.dataclass(frozen=True)
class Megatron:
    """Pairs of matrices: the first by columns, the second by rows, one sum after the pair.

    A matrix is a first one when tiling a free dimension of it leads, by propagation, to another
    matrix whose contracted dimension is then tiled: up and down in an MLP; queries, keys, values
      and the output in attention.

    Attributes:
      axis: the mesh axis.
      name: what the plan calls it.
    """

    axis: str
    name: str = "megatron"

    def actions(self, context: Context) -> list[Action]:
        """Tiles the first matrix of every pair found; a note tells where there is none."""
        if context.mesh[self.axis] == 1:
            return []
        products = weight_products(context)
        weight_of = {node: weight for node, _, weight in products}
        contracted = {
            node: {f for f in node.rule.operands[held] if f in node.rule.monoids}
            for node, held, _ in products
        }
        actions: list[Action] = []
        start = len(context.state.journal)
        for node, held, weight in products:
            if self.axis in context.state.factors.get(node, {}):
                continue
            found = self._first_of_pair(context, node, held, weight, weight_of, contracted)
            if found is not None:
                actions.append(found)
                context.trial([found])  # kept, so that the matrices it settles are not tried again
        context.state.rewind(start)
        if not actions:
            context.notes.append(
                f"no pair of matrices whose inner dimension divides by "
                f"{self.axis}={context.mesh[self.axis]}"
            )
        return actions

    def _first_of_pair(
        self,
        context: Context,
        node: Node,
        held: int,
        weight: Value,
        weight_of: dict[Node, Value],
        contracted: dict[Node, set[int]],
    ) -> Action | None:
        assert node.op is not None
        value = node.op.inputs[held]
        for dim, factor in enumerate(node.rule.operands[held]):
            if factor == WHOLE or factor in node.rule.monoids:
                continue
            if factor in node.rule.operands[1 - held] or not context.state.divides(
                value, dim, self.axis
            ):
                continue
            if self.axis in context.state.tiles.get(value, {}):
                return None
            action = Action(value, self.axis, dim)
            with context.trial([action]) as trial:
                rows = [
                    n
                    for n, f in trial.settled
                    if n in weight_of and f in contracted[n] and weight_of[n] is not weight
                ]
                if rows and not trial.conflicts:
                    return action
        return None


@dataclasses.dataclass(frozen=True)
class Embedding:
    """Tables that are looked up, by rows: each device looks up the rows it holds, and results are
    summed.

    Attributes:
      axis: the mesh axis.
      name: what the plan calls it.
    """

    axis: str
    name: str = "embedding"

    def actions(self, context: Context) -> list[Action]:
        """Tiles the looked-up dimension of every state array that a gather reads."""
        origin = origins(context)
        actions = []
        for node in context.graph.nodes:
            if node.op is None or not traits_of(node.op.name).lookup:
                continue
            table = node.op.inputs[0]
            if table not in origin:
                continue
            for dim, factor in enumerate(node.rule.operands[0]):
                if factor in node.rule.special and context.state.divides(table, dim, self.axis):
                    actions.append(Action(table, self.axis, dim))
                    break
            else:
                context.notes.append(
                    f"{label(origin[table])}: no looked-up dimension divides by {self.axis}"
                )
        if not actions:
            context.notes.append("no state array is looked up by rows")
        return actions


@dataclasses.dataclass(frozen=True)
class Expert:
    """Stacks of experts' matrices, one group of experts a device; tokens travel to their experts.

    Attributes:
      axis: the mesh axis.
      name: what the plan calls it.
    """

    axis: str
    name: str = "expert"

    def actions(self, context: Context) -> list[Action]:
        """Tiles the batch dimension of weights that enter a contraction batched: the experts."""
        actions: dict[Value, Action] = {}
        for node, held, _ in weight_products(context):
            assert node.op is not None
            value = node.op.inputs[held]
            batched = node.op.params["dimension_numbers"][1][held]
            for dim in batched:
                if value not in actions and context.state.divides(value, dim, self.axis):
                    actions[value] = Action(value, self.axis, dim)
        if not actions:
            context.notes.append(
                "no weights enter a product batched over experts that divide by the axis"
            )
        return list(actions.values())
