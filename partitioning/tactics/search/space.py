"""The search space: the moves on a program, and two judges of any sequence of them."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import NamedTuple

from ...decide.actions import Action, Context, ForceFactor, apply_actions
from ...decide.propagate import Conflict, propagate
from ...decide.repropagate import Repropagation, apply_tactic
from ...decide.sharding import Decision
from ...simulator.simulate import Simulation
from .baseline import Baseline
from .classes import ClassGraph
from .estimate import Estimator
from .moves import Move, known_moves, known_tactics, tilings
from .timeline import Estimated


class EnteredMove(NamedTuple):
    """What a move decided on the whole program.

    Attributes:
      decisions: the lines of the journal that it wrote.
      conflicts, repropagated: as `apply_tactic` returned them.
      notes: what its tactic remarked.
    """

    decisions: list[Decision]
    conflicts: list[Conflict]
    repropagated: list[Repropagation]
    notes: list[str]


class Space:
    """The moves over some axes, after the decisions so far.

    Args:
      context: the program, with a judge.
      axes: the axes that moves may split over.

    Attributes:
      classes: the program's classes.
      state: the decisions on them.
      estimate: the quick judge.
      initial: its state after those decisions.
      moves: every move, the known tactics first.
      seconds: processor seconds of each part of the setup.
    """

    def __init__(self, context: Context, axes: Sequence[str]):
        judge = context.judge
        assert judge is not None
        clock = [time.process_time()]
        self.context = context
        self.judge = judge
        known = [*known_tactics(context, axes, judge.work)]
        clock.append(time.process_time())
        self.classes = ClassGraph(
            context.graph, context.state, named=(v for k in known for v in k.values)
        )
        self.state = self.classes.decisions(context.state)
        self.inside = self.classes.context(self.state, context.tactics)
        clock.append(time.process_time())
        baseline = Baseline(context.graph.program, judge.device, judge.donated)
        self.estimate = Estimator(
            self.classes,
            baseline,
            judge.placement,
            context.mesh,
            judge.overlap,
        )
        self.initial = self.estimate.advance(self.state, self.state.journal)
        clock.append(time.process_time())
        self.moves: list[Move] = [
            *known_moves(known, self.classes),
            *tilings(context, self.classes, axes, self.state),
        ]
        clock.append(time.process_time())
        # What the last of some moves decided: candidates that are simulated begin alike.
        self._entered: dict[tuple[Move, ...], EnteredMove] = {}
        parts = ("known", "classes", "baseline", "moves")
        self.seconds = {p: b - a for p, a, b in zip(parts, clock, clock[1:], strict=False)}

    def enter(self, actions: Sequence[Action | ForceFactor]) -> list[Conflict] | None:
        """Enters actions on classes and propagates; None where they cannot be, or do nothing."""
        start = len(self.state.journal)
        try:
            seeds = apply_actions(self.inside, actions)
        except ValueError:
            self.state.rewind(start)
            return None
        finally:
            self.inside.notes.clear()
        conflicts = propagate(self.classes, self.state, seeds)  # type: ignore[arg-type]
        return conflicts if len(self.state.journal) > start else None

    def estimated(self, moves: Sequence[Move]) -> Estimated:
        """Estimates the cost of the program with these moves."""
        start = len(self.state.journal)
        for move in moves:
            self.enter(move.actions_on_classes)
        candidate = self.estimate.advance(self.state, self.state.journal[start:], self.initial)
        self.state.rewind(start)
        return self.estimate(candidate)

    def simulated(self, moves: Sequence[Move]) -> Simulation:
        """Simulates the whole program with these moves."""
        start = len(self.context.state.journal)
        self._enter_whole(moves)
        found = self.judge.simulate()
        self.context.state.rewind(start)
        return found

    def entered(self, moves: Sequence[Move]) -> tuple[EnteredMove, ...]:
        """What each of some moves decides on the whole program, after those before it."""
        start = len(self.context.state.journal)
        found = self._enter_whole(moves)
        self.context.state.rewind(start)
        return tuple(found)

    def _enter_whole(self, moves: Sequence[Move]) -> list[EnteredMove]:
        """Enters moves into the decisions on the whole program."""
        context, state = self.context, self.context.state
        found = []
        for count, move in enumerate(moves, 1):
            key = tuple(moves[:count])
            known = self._entered.get(key)
            if known is None:
                start, notes = len(state.journal), len(context.notes)
                conflicts, again = apply_tactic(
                    context, move.actions(context), move.axis, self.judge.work
                )
                known = self._entered[key] = EnteredMove(
                    state.journal[start:], conflicts, again, context.notes[notes:]
                )
                del context.notes[notes:]
            else:
                state.enter(known.decisions)
            found.append(known)
        return found
