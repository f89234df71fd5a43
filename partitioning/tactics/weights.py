"""Tactics that split weights together with the work on them: matrices in pairs, tables, experts."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from ..decide.actions import Action, Context, label
from ..decide.node import Node
from ..ir.program import Value
from ..rules import REPLICATED_FACTOR, traits_of


@dataclasses.dataclass(frozen=True)
class Megatron:
    """Pairs of matrices: the first by columns, the second by rows, one sum after the pair.

    A matrix is the first of a pair if tiling one of its free dimensions tiles, by propagation, the
    contracted dimension of another matrix: up and down in an MLP; queries, keys, values and the
    output in attention.

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
        products = context.graph.structure.weight_products
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
                actions.append(found[0])
                # Kept, so that the matrices it settles are not tried again.
                context.trial([found[0]])
        context.state.rewind(start)
        if not actions:
            context.notes.append(self._why_none(context, products, weight_of, contracted))
        return actions

    def _why_none(
        self,
        context: Context,
        products: Sequence[tuple[Node, int, Value]],
        weight_of: dict[Node, Value],
        contracted: dict[Node, set[int]],
    ) -> str:
        """The reason for no action: there is no pair, or its inner dimension does not divide."""
        size, taken = context.mesh[self.axis], context.state.factors
        matrices = dict.fromkeys(weight for _, _, weight in products)
        if not matrices:
            return "no pair of matrices: no product of the forward pass reads the state"
        if all(self.axis in taken.get(node, {}) for node, _, _ in products):
            return f"no pair of matrices: earlier tactics split every product over {self.axis!r}"
        pairs: dict[str, None] = {}
        for node, held, weight in products:
            assert node.op is not None
            for inner in sorted(set(node.op.inputs[held].shape)):
                if inner % size == 0:
                    continue
                # Is there a pair on an axis that the dimension does divide by?
                state = context.state.replay(mesh={**context.mesh, self.axis: inner})
                other = Context(context.graph, state, context.tactics)
                found = self._first_of_pair(other, node, held, weight, weight_of, contracted)
                if found is not None:
                    pairs[f"{_matrix(weight)} and {_matrix(found[1])} share {inner}"] = None
        if pairs:
            return (
                f"no pair of matrices whose inner dimension divides by {self.axis}={size}: "
                f"{_some(list(pairs))}"
            )
        return (
            "no pair of matrices: what none of them makes is, without being mixed, summed over by "
            f"another: {_some([_matrix(weight) for weight in matrices])}"
        )

    def _first_of_pair(
        self,
        context: Context,
        node: Node,
        held: int,
        weight: Value,
        weight_of: dict[Node, Value],
        contracted: dict[Node, set[int]],
    ) -> tuple[Action, Value] | None:
        """The action that tiles the first matrix, and the second one."""
        assert node.op is not None
        value = node.op.inputs[held]
        for dim, factor in enumerate(node.rule.operands[held]):
            if factor == REPLICATED_FACTOR or factor in node.rule.monoids:
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
                    for n, f in trial.assigned
                    if n in weight_of and f in contracted[n] and weight_of[n] is not weight
                ]
                if rows and not trial.conflicts:
                    return action, weight_of[rows[0]]
        return None


def _matrix(weight: Value) -> str:
    return f"{label(weight)} {list(weight.shape)}"


def _some(texts: list[str]) -> str:
    more = f" and {len(texts) - 3} more" if len(texts) > 3 else ""
    return "; ".join(texts[:3]) + more


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
        origin = context.graph.structure.origins
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
        for node, held, _ in context.graph.structure.weight_products:
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
