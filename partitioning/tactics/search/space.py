"""The search space: the moves on a program, and two judges of any sequence of them."""

from __future__ import annotations

import time
from collections.abc import Sequence

from ...decide.actions import Action, Context, ForceFactor, apply_actions
from ...decide.propagate import Conflict, propagate
from ...decide.repropagate import apply_tactic
from ...decide.sharding import Decision
from ...simulator.simulate import Simulation
from .baseline import Baseline
from .classes import ClassGraph
from .estimate import Estimator
from .moves import Move, known_moves, known_tactics, tilings
from .timeline import Estimated


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
        # What was decided by the last of some moves: candidates that are simulated begin alike.
        self._decided: dict[tuple[Move, ...], list[Decision]] = {}
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
        state, notes = self.context.state, len(self.context.notes)
        start = len(state.journal)
        for count, move in enumerate(moves, 1):
            first, before = tuple(moves[:count]), len(state.journal)
            if first in self._decided:
                state.enter(self._decided[first])
            else:
                apply_tactic(self.context, move.actions(self.context), move.axis, self.judge.work)
                self._decided[first] = state.journal[before:]
        found = self.judge.simulate()
        state.rewind(start)
        del self.context.notes[notes:]
        return found
