"""The moves of a search: a known tactic, one array's tiling, or the end of a conflict.

A move is a tactic of its own, which a plan can enter like any other; the search enters it into
classes. Tilings that lead to the same decisions are one move.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from ...decide.actions import Action, Context, ForceFactor, Tactic, label
from ...decide.flops import OpFlops
from ...decide.propagate import Conflict, fits
from ...decide.repropagate import apply_tactic
from ...decide.sharding import Decisions
from ...ir.program import Value
from ..batch import BatchParallel, SequenceParallel
from ..weights import Embedding, Expert, Megatron
from ..zero import Zero1, Zero2, Zero3
from .classes import ClassGraph

#: Bytes of what is large.
_LARGE = 256 * 1024
#: Known tactics that are moves on every axis.
_KNOWN: tuple[Callable[[str], Tactic], ...] = (
    BatchParallel,
    Megatron,
    Zero3,
    Zero2,
    SequenceParallel,
    Embedding,
    Expert,
    Zero1,
    lambda axis: Zero3(axis, "zero3 of large arrays", _LARGE),
)
#: Most conflicts whose ends are moves, those first in which most work waits.
_CONFLICTS = 4


@dataclasses.dataclass(frozen=True, eq=False)
class Move:
    """One step of a search; a tactic, for the plan that takes it.

    Attributes:
      name: a description, for people.
      axis: the mesh axis.
      actions_on_classes: its actions on the program's classes.
      classes: the classes.
      tactic: the known tactic that it is; None for actions of its own.
      order: its rank among moves of equal worth; it depends on structure alone.
    """

    name: str
    axis: str
    actions_on_classes: tuple[Action | ForceFactor, ...]
    classes: ClassGraph
    tactic: Tactic | None
    order: tuple[int, ...]

    def actions(self, context: Context) -> Sequence[Action | ForceFactor]:
        """Its actions on the whole program, as far as earlier moves allow."""
        if self.tactic is None:
            found = self.classes.to_members(self.actions_on_classes)
        else:
            found = [*self.tactic.actions(context)]
        return [soft for action in found if (soft := _possible(action, context)) is not None]


class KnownTactic(NamedTuple):
    """A known tactic, its actions on the whole program, and its rank among moves."""

    tactic: Tactic
    actions: tuple[Action | ForceFactor, ...]
    order: tuple[int, ...]

    @property
    def values(self) -> Iterator[Value]:
        """The values that its actions name."""
        return (a.value for a in self.actions if isinstance(a, Action))


def _possible(action: Action | ForceFactor, context: Context) -> Action | ForceFactor | None:
    """The action without insisting on it; None where the dimension does not divide."""
    if isinstance(action, ForceFactor):
        return action
    value, axis, what = action.value, action.axis, action.what
    if axis not in context.state.tiles.get(value, ()) and isinstance(what, int):
        dim = what % value.ndim
        return (
            dataclasses.replace(action, firm=False)
            if context.state.divides(value, dim, axis)
            else None
        )
    return dataclasses.replace(action, firm=False)


def known_tactics(context: Context, axes: Sequence[str], work: OpFlops) -> Iterator[KnownTactic]:
    """Yields the known tactics on each axis, with the actions that each takes here."""
    state = context.state
    told: set[tuple[Action | ForceFactor, ...]] = set()
    for rank, make in enumerate(_KNOWN):
        for axis in axes:
            tactic: Tactic = make(axis)
            start, notes = len(state.journal), len(context.notes)
            found: list[Action | ForceFactor] = []
            try:
                found += tactic.actions(context)
                if isinstance(tactic, BatchParallel | SequenceParallel):
                    # Where rows move, as through a shuffle, is found on the program itself.
                    _, repropagated = apply_tactic(context, found, axis, work)
                    found += [Action(r.value, r.axis, r.dim) for r in repropagated if not r.turns]
            except ValueError:
                continue  # A dimension that does not divide, say: no move here.
            finally:
                state.rewind(start)
                del context.notes[notes:]
            if found and tuple(found) not in told:
                told.add(tuple(found))
                yield KnownTactic(tactic, tuple(found), (0, rank, axes.index(axis)))


def known_moves(known: Sequence[KnownTactic], classes: ClassGraph) -> Iterator[Move]:
    """Known tactics as moves on classes."""
    for tactic, found, order in known:
        name = f"{tactic.name} over {tactic.axis}"
        yield Move(name, tactic.axis, tuple(classes.to_classes(found)), classes, tactic, order)


def tilings(
    context: Context, classes: ClassGraph, axes: Sequence[str], state: Decisions
) -> Iterator[Move]:
    """Every tiling of an input, but those that lead to the same decisions as one before.

    Args:
      context: the program.
      classes: its classes.
      axes: the axes to tile over.
      state: the decisions on the classes; left as it was.
    """
    roles = dict.fromkeys(context.graph.structure.parameters, 0)
    roles |= dict.fromkeys(context.graph.structure.optimizer_state, 2)
    inputs = sorted(
        classes.inputs, key=lambda v: (roles.get(v, 1), -v.nbytes, classes.colour.get(v, 0))
    )
    inside = classes.context(state, context.tactics)
    seen: set[int] = set()
    reached: set[tuple[Value, str, int]] = set()
    for axis in axes:
        for value in inputs:
            if axis in state.tiles.get(value, ()):
                continue
            for dim in range(value.ndim):
                if (dim == 0 and value in context.scanned) or not state.divides(value, dim, axis):
                    continue
                if roles.get(value) == 2 and (value, axis, dim) in reached:
                    continue  # As its parameter is tiled, so are its moments.
                action = Action(value, axis, dim)
                with inside.trial([action]) as trial:
                    effect = 0
                    for decision in trial.decisions:
                        what = decision.value if decision.value is not None else decision.node
                        if decision.value is not None:
                            reached.add((decision.value, axis, decision.what))
                        effect ^= hash((classes.colour[what], axes.index(axis), decision.what))
                if effect in seen:
                    continue
                seen.add(effect)
                order = (1, roles.get(value, 1), -value.nbytes, classes.colour[value], dim)
                name = f"dimension {dim} of {_class_name(value, classes)} over {axis}"
                yield Move(name, axis, (action,), classes, None, order)


def conflict_moves(
    conflicts: Sequence[Conflict], classes: ClassGraph, state: Decisions, work: OpFlops
) -> list[Move]:
    """Moves for the conflicts that hold up the most work: one for each factor the op may take."""
    waiting = {}
    for conflict in conflicts:
        node = conflict.node
        if conflict.axis in state.factors.get(node, ()):
            continue
        done = sum(work.of.get(n.op, 0.0) for n in classes.node_members[node] if n.op is not None)
        waiting[node, conflict.axis] = (-done, classes.colour[node]), conflict
    found = []
    for _, conflict in sorted(waiting.values(), key=lambda item: item[0])[:_CONFLICTS]:
        node, axis = conflict.node, conflict.axis
        for factor, text in zip(conflict.factors, conflict.candidates, strict=True):
            if fits(node, factor, axis, state):
                where = f" at {conflict.source}" if conflict.source else ""
                name = f"{conflict.op}{where} by {text} over {axis}"
                order = (2, classes.colour[node], factor)
                found.append(
                    Move(name, axis, (ForceFactor(node, axis, factor),), classes, None, order)
                )
    return found


def _class_name(value: Value, classes: ClassGraph) -> str:
    count = len(classes.members[value])
    return label(value) + (f" and {count - 1} more" if count > 1 else "")
