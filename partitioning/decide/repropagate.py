"""Re-propagation: finds the ops at which a tiling of a step's inputs ends, and tiles again behind.

Propagation follows rules, op by op. It ends at a split into micro-batches that do not divide by the
axis, at rows picked by index, and at a scan over the tiled dimension; every device would then do
all the work that follows. The rows themselves go on, spread over other dimensions
(:mod:`.row_flow`). Those dimensions are tried in program order, and kept where they split more of
the work. The rows move once, at that op. Results do not change: every layout of a value is valid.

A loop with little in it that is tiled then is split itself, if its turns are independent
(:mod:`.turns`): `lax.map` over rows, and gradients added up over micro-batches that do not divide.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from ..ir.program import Op, Value
from ..rules import REPLICATED_FACTOR, traits_of
from .actions import Action, Context, ForceFactor, apply_actions
from .flops import OpFlops
from .graph import is_store
from .node import Node
from .propagate import Conflict, fits, propagate
from .row_flow import RowFlow
from .sharding import REPLICATED_DIM
from .turns import unsplit_loops

#: The least share of a program's work for which a tiling is taken up again.
_LEAST_GAIN = 1e-3
#: Most dimensions tried for one tactic; each costs a propagation.
_TRIALS = 64


@dataclasses.dataclass(frozen=True)
class Repropagation:
    """A tiling that ended and was taken up again.

    Attributes:
      op: the op at which rows move: a reshape, a lookup, or a scan that takes them; or a loop with
        turns that are split.
      value: the value that is tiled again; of a loop with turns that are split, its first result.
      axis: the mesh axis.
      dim: the dimension.
    """

    op: Op
    value: Value
    axis: str
    dim: int

    @property
    def place(self) -> str:
        """The op and its line in the source."""
        return f"{self.op.name} at {self.op.source}" if self.op.source else self.op.name

    @property
    def turns(self) -> bool:
        """True if the turns of a loop are split."""
        return bool(self.op.regions) and self.value in self.op.outputs

    def __str__(self) -> str:
        if self.turns:
            turns = f"the {self.op.trips} turns of {self.place}"
            return f"{self.axis}: {turns} are independent, and each device runs its share"
        return (
            f"{self.axis}: rows move at {self.place}, and go on tiled over dimension {self.dim} "
            f"of {self.value.type_text()}"
        )


def summaries(repropagated: Sequence[Repropagation]) -> list[str]:
    """A line for each place at which tilings were taken up again."""
    places: dict[tuple[str, str], list[Repropagation]] = {}
    for found in repropagated:
        places.setdefault((found.axis, found.place), []).append(found)
    return [
        str(found[0]) + (f" and {len(found) - 1} more" if len(found) > 1 else "")
        for found in places.values()
    ]


def apply_tactic(
    context: Context, actions: Sequence[Action | ForceFactor], axis: str, work: OpFlops
) -> tuple[list[Conflict], list[Repropagation]]:
    """Enters a tactic's actions, propagates, and tiles again where tilings of inputs ended.

    Args:
      context: program and state; the state is extended.
      actions: what the tactic asks for.
      axis: the tactic's axis.
      work: the work of the program's ops.

    Returns:
      The conflicts that stay, and the re-propagations.
    """
    start, notes = len(context.state.journal), len(context.notes)
    first: list[ForceFactor] = []
    turns: list[ForceFactor] = []
    while True:
        seeds = apply_actions(context, [*first, *actions, *turns])
        conflicts = propagate(context.graph, context.state, seeds)
        attempt = _Attempt(context, axis, start, conflicts, work)
        repropagated = attempt.run()
        picked = attempt.cheaper_gathered()
        loops = [] if picked else [a for a in attempt.unsplit_loops() if a not in turns]
        if not picked and not loops:
            factors = context.state.factors
            left = [c for c in conflicts if axis not in factors.get(c.node, ())]
            done = [a for a in [*first, *turns] if axis in factors.get(a.node, ())]
            return left, [_forced(action) for action in done] + repropagated
        first += picked
        turns += loops
        context.state.rewind(start)
        del context.notes[notes:]


class _Attempt:
    """One pass over a program after a tactic's propagation."""

    def __init__(
        self, context: Context, axis: str, start: int, conflicts: list[Conflict], work: OpFlops
    ):
        self.context = context
        self.axis = axis
        self.start = start
        self.conflicts = conflicts
        self.work = work
        self.trials = 0
        updated, makers = context.graph.updated, context.graph.makers
        # What is fed, and what state only keeps, such as the rows of a replay.
        fed = {v for v in context.inputs if v not in updated or is_store(v, updated[v], makers)}
        self.seeds = [
            (d.value, d.what)
            for d in context.state.journal[start:]
            if d.value in fed and d.what != REPLICATED_DIM and d.axis == axis
        ]
        self.rows: RowFlow | None = None

    def run(self) -> list[Repropagation]:
        """Takes up what can be; most programs have nothing."""
        if not self.seeds or not self._ends():
            return []
        state = self.context.state
        self.rows = rows = RowFlow(self.context.graph, self.seeds)
        repropagated: list[Repropagation] = []
        for value, op in rows.entries.items():
            if self.axis in state.tiles.get(value, ()) or value.data is not None:
                continue
            # Of experts' slots the slots: the experts may be another axis's.
            slots = traits_of(op.name).traffic == "scatter"
            for dim in sorted(rows.dims[value], reverse=slots):
                if dim == 0 and value in self.context.scanned:
                    continue
                if state.divides(value, dim, self.axis) and self._try(self._tiled(value, op, dim)):
                    repropagated.append(Repropagation(op, value, self.axis, dim))
                    break
        for conflict in self.conflicts:
            self._resolve(conflict, rows)
        return repropagated

    def _ends(self) -> bool:
        """True if the tiling ends at some op, or a lookup searches rows on every device."""
        graph, state, axis = self.context.graph, self.context.state, self.axis
        seen: set[Node] = set()
        for decision in state.journal[self.start :]:
            if decision.value is None:
                if decision.node is not None and _searches_share(decision.node, decision.what):
                    return True
                continue
            for node in graph.touching.get(decision.value, ()):
                if node not in seen:
                    seen.add(node)
                    if axis not in state.factors.get(node, ()):
                        return True
        return False

    def _tiled(self, value: Value, op: Op, dim: int) -> list[Action | ForceFactor]:
        """The action that tiles a value's dimension: forces the op's factor where one fits."""
        node, state = self.context.graph.of.get(op), self.context.state
        if node is None or value not in op.outputs or self.axis in state.factors.get(node, ()):
            return [Action(value, self.axis, dim)]
        factor = node.rule.results[op.outputs.index(value)][dim]
        if factor != REPLICATED_FACTOR and fits(node, factor, self.axis, state):
            return [ForceFactor(node, self.axis, factor)]
        return [Action(value, self.axis, dim)]

    def _try(self, actions: list[Action | ForceFactor]) -> bool:
        """Keeps actions by which more of the work is split."""
        if self.trials >= _TRIALS:
            return False
        self.trials += 1
        trial = self.context.trial(actions)
        gain = sum(self.work.node(node, factor) for node, factor in trial.assigned)
        if gain < _LEAST_GAIN * self.work.total:
            self.context.state.rewind(trial.start)
            return False
        self.conflicts += trial.conflicts
        return True

    def _resolve(self, conflict: Conflict, rows: RowFlow) -> None:
        """Decides an elementwise op with operands that hold the rows in different dimensions."""
        node, state = conflict.node, self.context.state
        if node.op is None or not traits_of(node.op.name).elementwise:
            return
        if self.axis in state.factors.get(node, ()):
            return
        for value in node.values:
            dim = state.tiles.get(value, {}).get(self.axis, REPLICATED_DIM)
            if dim != REPLICATED_DIM and dim not in rows.dims.get(value, ()):
                return
        for factor in conflict.factors:
            if self._try([ForceFactor(node, self.axis, factor)]):
                return

    def cheaper_gathered(self) -> list[ForceFactor]:
        """Lookups in tiled rows that move less if the rows are gathered, once for all loops.

        Otherwise every device picks the rows that it holds, and the results are summed over the
        devices in every turn of a loop.
        """
        rows, state = self.rows, self.context.state
        if rows is None:
            return []
        found: list[ForceFactor] = []
        for decision in state.journal[self.start :]:
            node = decision.node
            if decision.value is not None or node is None or node.op is None:
                continue
            if not _searches_share(node, decision.what) or node.op.inputs[0] not in rows.dims:
                continue
            (result,) = node.op.outputs
            dim = state.tiles.get(result, {}).get(self.axis, REPLICATED_DIM)
            factor = REPLICATED_FACTOR if dim == REPLICATED_DIM else node.rule.results[0][dim]
            if factor == REPLICATED_FACTOR or factor in node.rule.special:
                continue
            table = node.op.inputs[0]
            gathered = table.nbytes * rows.turns.get(table, 1)
            if gathered <= result.nbytes * rows.turns.get(result, 1):
                found.append(ForceFactor(node, self.axis, factor))
        return found

    def unsplit_loops(self) -> list[ForceFactor]:
        """Loops that rows come into and leave mostly unsplit, with turns that can be split."""
        rows = self.rows.dims if self.rows is not None else {}
        nodes = unsplit_loops(
            self.context.graph, self.context.state, self.axis, self.start, rows, self.work
        )
        least = _LEAST_GAIN * self.work.total
        return [
            ForceFactor(node, self.axis, 0) for node in nodes if self.work.node(node, 0) >= least
        ]


def _forced(action: ForceFactor) -> Repropagation:
    """The re-propagation of a lookup with gathered rows, by the tiled dimension of its result; or
    of a loop with turns that are split.
    """
    op, rule = action.node.op, action.node.rule
    assert op is not None
    if op.regions:
        return Repropagation(op, op.outputs[0], action.axis, 0)
    return Repropagation(op, op.outputs[0], action.axis, rule.results[0].index(action.factor))


def _searches_share(node: Node, factor: int) -> bool:
    """True if a lookup with this factor searches each device's share of its table."""
    return node.op is not None and factor in node.rule.special and traits_of(node.op.name).lookup
