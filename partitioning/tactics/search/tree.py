"""Monte Carlo tree search over moves: seeded, within a budget of estimates, ready at any time.

A node of the tree is a set of decisions on the program's classes; two orders of the same moves meet
in one node. The root tries every move once, for a prior of each. From then on the tree is walked by
upper confidence bounds that start from those priors (PUCT, as in AlphaZero). Nothing is random in
the cost of moves, so that the worth of a node is the best candidate below it. Stopping is always
possible: every node is a candidate.
"""

from __future__ import annotations

import dataclasses
import math
import random
import time
from collections.abc import Callable, Sequence

from ...decide.propagate import Conflict
from ...decide.sharding import Decision, shared
from ...ir.garbage import no_garbage_collection
from .candidate_state import CandidateState
from .moves import Move, conflict_moves
from .space import Space
from .timeline import Estimated

#: The worth of a look at an untried move against a good one.
_EXPLORATION = 2.4
#: The share of the estimates that goes to single moves at the root, and to the tree with them.
_LOOKS, _TREE = 0.4, 0.55
#: Costs closer than this are the same.
_ALIKE = 1e-4


class _BudgetSpent(Exception):
    """The budget is."""


@dataclasses.dataclass(eq=False)
class Candidate:
    """A sequence of moves, and its estimated cost.

    Attributes:
      moves: in order.
      estimated: their estimated cost.
      cost: the figure to compare: seconds, more where memory does not suffice.
      at: how many estimates had been made.
    """

    moves: tuple[Move, ...]
    estimated: Estimated
    cost: float
    at: int

    @property
    def first(self) -> Move | None:
        """The first move; None where there is no move."""
        return self.moves[0] if self.moves else None


@dataclasses.dataclass(eq=False)
class _TreeNode:
    candidate: Candidate
    decisions: list[Decision]
    conflicts: list[Conflict]
    key: int
    candidate_state: CandidateState
    best: float
    gain: float
    visits: int = 1
    moves: list[Move] | None = None
    tried: dict[Move, _TreeNode | None] = dataclasses.field(default_factory=dict)
    idle: set[Move] = dataclasses.field(default_factory=set)
    exhausted: bool = False


class Search:
    """A search on one program's classes.

    Args:
      space: the search space.
      cost: from an estimate to the figure to minimise.
      estimates: the number of candidates that may be estimated.
      seconds: the time after which the search stops in any case; None for never.
      seed: of the random choices.

    Attributes:
      candidates: every candidate that was estimated, in order.
    """

    def __init__(
        self,
        space: Space,
        cost: Callable[[Estimated], float],
        estimates: int,
        seconds: float | None,
        seed: int,
    ):
        self.space = space
        self.state = space.state
        self.cost = cost
        self.limit = estimates
        self.stop = math.inf if seconds is None else time.monotonic() + seconds
        self.random = random.Random(seed)
        self.base = len(self.state.journal)
        self.known: dict[int, _TreeNode] = {}
        self.candidates: list[Candidate] = []
        self.best = math.inf
        self.root = self._node((), [], [], 0, space.initial)

    # -- one candidate ----------------------------------------------------------------------------

    def _node(
        self,
        moves: tuple[Move, ...],
        decisions: list[Decision],
        conflicts: list[Conflict],
        key: int,
        candidate_state: CandidateState,
    ) -> _TreeNode:
        """Estimates a state, and makes a node of it."""
        if len(self.candidates) >= self.limit or time.monotonic() > self.stop:
            raise _BudgetSpent
        estimated = self.space.estimate(candidate_state)
        candidate = Candidate(moves, estimated, self.cost(estimated), len(self.candidates) + 1)
        self.candidates.append(candidate)
        self.best = min(self.best, candidate.cost)
        cost = candidate.cost
        gain = self._gain(cost) if self.known else 0.0
        node = _TreeNode(candidate, decisions, conflicts, key, candidate_state, cost, gain)
        self.known[key] = node
        return node

    def restore(self, node: _TreeNode) -> None:
        """Brings the state to a node."""
        same = shared(self.state.journal, node.decisions, self.base)
        self.state.rewind(self.base + same)
        self.state.enter(node.decisions[same:])

    def _child(self, node: _TreeNode, move: Move) -> _TreeNode | None:
        """The node that a move leads to; None where it does nothing or cannot be made."""
        if move in node.tried:
            return node.tried[move]
        if move in node.idle:
            node.tried[move] = None
            return None
        self.restore(node)
        conflicts = self.space.enter(move.actions_on_classes)
        if conflicts is None:
            node.tried[move] = None
            node.idle.add(move)
            return None
        estimate, decisions = self.space.estimate, self.state.journal[self.base :]
        new = decisions[len(node.decisions) :]
        key = estimate.key_of(new, node.key)
        child = self.known.get(key)
        if child is None:
            candidate_state = estimate.advance(self.state, new, node.candidate_state)
            open_ = [*node.conflicts, *conflicts]
            child = self._node(
                (*node.candidate.moves, move), decisions, open_, key, candidate_state
            )
            # Decisions are never undone: one action that had nothing left to decide has nothing
            # further on. Of several, one that could not be made may be passed over there.
            child.idle |= {m for m in node.idle if len(m.actions_on_classes) == 1}
        node.tried[move] = None if child is node else child
        return node.tried[move]

    # -- the search -------------------------------------------------------------------------------

    def run(self) -> list[Candidate]:
        """Searches; says what was found, as `ranked` does."""
        try:
            with no_garbage_collection():
                self._search()
        except _BudgetSpent:
            pass
        finally:
            self.state.rewind(self.base)
        return self.ranked()

    def ranked(self) -> list[Candidate]:
        """All candidates, the best first; of alike ones the one with fewer moves."""
        return sorted(
            self.candidates,
            key=lambda c: (round(math.log(max(c.cost, 1e-12)) / _ALIKE), len(c.moves), c.at),
        )

    def _search(self) -> None:
        self._priors(self.space.moves)
        while len(self.candidates) < _TREE * self.limit and not self.root.exhausted:
            self._walk()
        self._polish()

    def _priors(self, moves: Sequence[Move]) -> None:
        """Tries moves alone, the known tactics first, and orders all by how well they did."""
        limit = max(_LOOKS * self.limit, 1)
        found: list[tuple[float, float, Move]] = []
        for move in moves:
            cost = math.inf
            if len(self.candidates) < limit:
                child = self._child(self.root, move)
                if child is None:
                    continue
                cost = child.candidate.cost
            found.append((cost, self.random.random(), move))
        found.sort(key=lambda item: (item[0], item[1]))
        self.moves = [move for _, _, move in found]
        # Known tactics are worth a second look wherever they stand.
        weights = [
            (2.0 if move.tactic is not None else 1.0) / (rank + 2.0)
            for rank, move in enumerate(self.moves)
        ]
        self.prior = {
            move: weight / sum(weights) for move, weight in zip(self.moves, weights, strict=True)
        }

    def _open(self, node: _TreeNode) -> list[Move]:
        """The moves of a node that do something there, as far as is known."""
        return [m for m in self._all(node) if m not in node.tried or node.tried[m] is not None]

    def _all(self, node: _TreeNode) -> list[Move]:
        """The moves of a node, of those of equal worth the likelier first."""
        if node.moves is None:
            self.restore(node)
            ends = conflict_moves(
                node.conflicts, self.space.classes, self.state, self.space.judge.work
            )
            node.moves = sorted([*ends, *self.moves], key=self._prior, reverse=True)
        return node.moves

    def _walk(self) -> None:
        """Walks from the root to a new node, or to one that leads nowhere new."""
        path, node = [self.root], self.root
        while True:
            move = self._next(node)
            if move is None:
                node.exhausted = True
                break
            before = len(self.candidates)
            child = self._child(node, move)
            if child is None:
                continue
            if child in path:
                node.tried[move] = None
                continue
            path.append(child)
            node = child
            if len(self.candidates) > before:
                break
        for place in range(len(path) - 1, -1, -1):
            path[place].visits += 1
            if place + 1 < len(path) and path[place + 1].best < path[place].best:
                path[place].best, path[place].gain = path[place + 1].best, path[place + 1].gain

    def _next(self, node: _TreeNode) -> Move | None:
        """The move of the highest bound: one that was tried, or the likeliest of the others."""
        tried, prior = node.tried, self._prior
        least, often = self._least_gain(), math.sqrt(node.visits)
        chosen, highest = None, -math.inf
        for move, child in tried.items():
            if child is not None and not child.exhausted:
                bound = self._worth(child.gain, least)
                bound += _EXPLORATION * prior(move) * often / (1 + child.visits)
                if bound > highest:
                    chosen, highest = move, bound
        new = next((move for move in self._all(node) if move not in tried), None)
        if new is not None:
            alone = self._worth(self._gain(node.candidate.cost), least)
            if alone + _EXPLORATION * prior(new) * often > highest:
                chosen = new
        return chosen

    def _prior(self, move: Move) -> float:
        return self.prior.get(move, 1.0 / (len(self.prior) + 1))

    def _gain(self, cost: float) -> float:
        """By how much a candidate is cheaper than no move at all, as a logarithm."""
        return math.log(self.root.candidate.cost / cost)

    def _least_gain(self) -> float:
        """The gain that is worth 1: that of the best candidate, if there is any to speak of."""
        return max(self._gain(self.best), 0.02)

    def _worth(self, gain: float, best: float) -> float:
        """1 for the best candidate, 0 for what costs as much as no move at all, less for more."""
        return max(gain / best, -1.0)

    # -- the end of it ----------------------------------------------------------------------------

    def _polish(self) -> None:
        """Climbs from the best candidate of each beginning, the best of them first."""
        begun: set[Move | None] = set()
        while best := next((c for c in self.ranked() if c.first not in begun), None):
            begun.add(best.first)
            if (node := self._follow(best.moves)) is not None:
                self._climb(node)

    def _climb(self, node: _TreeNode) -> None:
        """Adds what helps and drops what does not, until neither is found."""
        before = None
        while node is not before:
            before = node
            node = self._drop_move(self._prepend_move(self._append_moves(node)))

    def _append_moves(self, node: _TreeNode) -> _TreeNode:
        """Adds one move after the other where that does good."""
        for move in self._open(node):
            child = self._child(node, move)
            if child is not None and self._is_better(child, node):
                node = child
        return node

    def _is_better(self, node: _TreeNode, than: _TreeNode) -> bool:
        return node.candidate.cost < than.candidate.cost * (1 - _ALIKE)

    def _prepend_move(self, node: _TreeNode) -> _TreeNode:
        """Puts a move or a known tactic before the others, where that does good: what comes first
        is laid out as it likes.
        """
        moves = node.candidate.moves
        for move in (*moves[1:], *(m for m in self.moves if m.tactic and m not in moves)):
            found = self._follow((move, *(m for m in moves if m is not move)))
            if found is not None and self._is_better(found, node):
                return found
        return node

    def _follow(self, moves: Sequence[Move]) -> _TreeNode | None:
        """The node that moves lead to."""
        node: _TreeNode | None = self.root
        for move in moves:
            if node is not None:
                node = self._child(node, move) or node
        return node

    def _drop_move(self, node: _TreeNode) -> _TreeNode:
        """Leaves out one move after the other where that does no harm."""
        moves = node.candidate.moves
        for i in range(len(moves) - 1, -1, -1):
            fewer = self._follow((*moves[:i], *moves[i + 1 :]))
            if fewer is None or len(fewer.candidate.moves) >= len(moves):
                continue
            if fewer.candidate.cost <= node.candidate.cost * (1 + _ALIKE):
                return fewer
        return node
