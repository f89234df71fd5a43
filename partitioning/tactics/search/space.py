"""What there is to search in: the moves on a program, and two judges of any sequence of them."""

from __future__ import annotations

import time
from collections.abc import Sequence

from ...decide.actions import Action, Context, Settle, apply
from ...decide.propagate import Conflict, propagate
from ...decide.repropagate import settle
from ...decide.sharding import Decision
from ...simulator.simulate import Simulation
from .baseline import Baseline
from .classes import Folded
from .estimate import Estimator
from .moves import Move, known_tactics, macros, tilings
from .timeline import Estimated


class Space:
    """The moves over some axes, after what is decided already.

    Args:
      context: the program, with a judge.
      axes: over which moves may split.

    Attributes:
      folded: the program's classes.
      state: what is decided of them.
      estimate: the quick judge.
      seen: what it saw of the state.
      moves: every move, the known tactics first.
      seconds: of a processor, for each part of this.
    """

    def __init__(self, context: Context, axes: Sequence[str]):
        judge = context.judge
        assert judge is not None
        clock = [time.process_time()]
        self.context = context
        self.judge = judge
        known = [*known_tactics(context, axes, judge.work)]
        clock.append(time.process_time())
        self.folded = Folded(
            context.graph, context.state, named=(v for k in known for v in k.values)
        )
        self.state = self.folded.decisions(context.state)
        self.inside = self.folded.context(self.state, context.tactics)
        clock.append(time.process_time())
        baseline = Baseline(context.graph.program, judge.device, judge.donated)
        self.estimate = Estimator(
            self.folded,
            baseline,
            judge.placement,
            context.mesh,
            judge.overlap,
            judge.gather_again,
        )
        self.seen = self.estimate.see(self.state, self.state.journal)
        clock.append(time.process_time())
        self.moves: list[Move] = [
            *macros(known, self.folded),
            *tilings(context, self.folded, axes, self.state),
        ]
        clock.append(time.process_time())
        # What was decided by the last of some moves: candidates that are simulated begin alike.
        self._settled: dict[tuple[Move, ...], list[Decision]] = {}
        parts = ("known", "fold", "baseline", "moves")
        self.seconds = {p: b - a for p, a, b in zip(parts, clock, clock[1:], strict=False)}

    def enter(self, actions: Sequence[Action | Settle]) -> list[Conflict] | None:
        """Enters actions on classes and propagates; None where they cannot be, or do nothing."""
        start = len(self.state.journal)
        try:
            seeds = apply(self.inside, actions)
        except ValueError:
            self.state.rewind(start)
            return None
        finally:
            self.inside.notes.clear()
        conflicts = propagate(self.folded, self.state, seeds)  # type: ignore[arg-type]
        return conflicts if len(self.state.journal) > start else None

    def estimated(self, moves: Sequence[Move]) -> Estimated:
        """What the quick judge says of moves."""
        start = len(self.state.journal)
        for move in moves:
            self.enter(move.actions_on_classes)
        seen = self.estimate.see(self.state, self.state.journal[start:], self.seen)
        self.state.rewind(start)
        return self.estimate(seen)

    def simulated(self, moves: Sequence[Move]) -> Simulation:
        """What the simulator says of the whole program with these moves."""
        state, notes = self.context.state, len(self.context.notes)
        start = len(state.journal)
        for count, move in enumerate(moves, 1):
            first, before = tuple(moves[:count]), len(state.journal)
            if first in self._settled:
                state.enter(self._settled[first])
            else:
                settle(self.context, move.actions(self.context), move.axis, self.judge.work)
                self._settled[first] = state.journal[before:]
        found = self.judge.simulate()
        state.rewind(start)
        del self.context.notes[notes:]
        return found
