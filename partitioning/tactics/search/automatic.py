"""The tactic that searches: `Automatic`, its goal, its budget, and its log."""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ...decide.actions import Context
from ...simulator.simulate import Simulation, amount
from ..zero import Zero1, Zero2, Zero3
from .least_memory import least_bytes
from .moves import Move
from .space import EnteredMove, Space
from .timeline import Estimated
from .tree import Candidate, Search

#: Plans whose predictions differ by less are alike; the simpler one is taken.
_NEARLY = 5e-4
#: Candidates are simulated unless their estimates differ by more than these shares, which are a few
#: times the median errors of estimates.
_ERROR_OF_TIME, _ERROR_OF_MEMORY = 0.2, 0.1
#: The first of them, of a second tactic of ZeRO over one axis.
_ERROR_OF_MORE = 0.05
#: The share beyond the limit that a candidate may need that computes activations again.
_MOST_RECOMPUTED = 3.0
_ZERO = (Zero1, Zero2, Zero3)


@dataclasses.dataclass(frozen=True)
class Goal:
    """The goal of a search: the least time among the plans that fit.

    Attributes:
      memory: the largest share of a device's memory that a plan may need, after recomputation.
        Planning fails if no plan that is found keeps to it. None: the limit of recomputation, or
        the device's memory, without failing.
    """

    memory: float | None = None

    def __post_init__(self) -> None:
        known = self.memory is None or (
            isinstance(self.memory, int | float) and not isinstance(self.memory, bool)
        )
        if not known or (self.memory is not None and not 0 < self.memory <= 1):
            raise ValueError(
                f"Goal(memory={self.memory!r}): it is a share of the device's memory, above 0 and "
                "at most 1, or None"
            )


@dataclasses.dataclass(frozen=True)
class Budget:
    """The budget of a search.

    Attributes:
      estimates: the number of candidates to estimate; results are the same for a seed everywhere.
      judged: the number of the best candidates that the simulator judges in full, and at most as
        many again that have a tactic of ZeRO more than the best of them.
      seed: of the random choices of the search.
      seconds: a time after which the search stops; results then depend on the machine.
    """

    estimates: int = 300
    judged: int = 6
    seed: int = 0
    seconds: float | None = None

    def __post_init__(self) -> None:
        for name in ("estimates", "judged"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ValueError(f"Budget({name}={value!r}): it is a whole number of at least 1")
        if isinstance(self.seed, bool) or not isinstance(self.seed, int):
            raise ValueError(f"Budget(seed={self.seed!r}): it is a whole number")
        if self.seconds is not None and not self.seconds > 0:
            raise ValueError(f"Budget(seconds={self.seconds!r}): it is a time above 0, or None")


@dataclasses.dataclass(frozen=True)
class Judged:
    """One candidate that was judged in full, or only estimated.

    Attributes:
      moves: the names of its moves, in order.
      estimated_seconds, estimated_bytes: its estimated cost.
      seconds, bytes: its simulated cost; None where it was not simulated.
      why: why it was taken or not.
    """

    moves: tuple[str, ...]
    estimated_seconds: float
    estimated_bytes: float
    seconds: float | None
    bytes: int | None
    why: str

    def to_json(self) -> dict[str, Any]:
        return dataclasses.asdict(self)


@dataclasses.dataclass(frozen=True)
class SearchLog:
    """The log of a search.

    Attributes:
      estimates: the number of estimated candidates.
      classes: the number of nodes in the graph of classes, and in the whole program.
      wall_seconds: the wall-clock time of the search.
      best: (estimates made, the least estimated seconds so far) at each improvement.
      judged: the candidates that the simulator judged, the taken one first.
      saves: for each move of the taken one, the seconds that it saves: the step would take so much
        longer without it, by the simulator or, where the move clearly pays, by its estimate.
    """

    estimates: int
    classes: tuple[int, int]
    wall_seconds: float
    best: tuple[tuple[int, float], ...]
    judged: tuple[Judged, ...]
    saves: tuple[float, ...]

    def to_json(self) -> dict[str, Any]:
        """The log, without the time that it took: that is the machine's and not the search's."""
        return {
            "estimates": self.estimates,
            "classes": list(self.classes),
            "best": [list(point) for point in self.best],
            "judged": [tried.to_json() for tried in self.judged],
            "saves": list(self.saves),
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> SearchLog:
        """The log that `to_json` wrote, as of a search that took no time."""
        operations, of = data["classes"]
        best = tuple((count, seconds) for count, seconds in data["best"])
        judged = (Judged(**{**one, "moves": tuple(one["moves"])}) for one in data["judged"])
        return cls(
            data["estimates"], (operations, of), 0.0, best, tuple(judged), tuple(data["saves"]),
        )  # fmt: skip

    def saving(self, index: int) -> str:
        """The number of a move and the time that it saves: "move 2 of 8, saves 1.9 ms"."""
        return f"move {index + 1} of {len(self.saves)}, {_saving(self.saves[index])}"

    def lines(self) -> list[str]:
        """The search in words: each move with the time that it saves, then the runners-up."""
        taken, *others = self.judged
        count = len(taken.moves)
        found = [
            f"{self.estimates} candidates estimated on {self.classes[0]} of {self.classes[1]} ops, "
            f"{len(self.judged)} judged in full"
        ]
        found += [f"{self.saving(i)}: {name}" for i, name in enumerate(taken.moves)]
        found += [] if count else ["it splits nothing, which is predicted to be quickest"]
        for tried in others[:3]:
            moves = "; ".join(tried.moves) or "as it is"
            found.append(f"runner-up, {tried.why}: {moves}")
        return found


def _saving(seconds: float) -> str:
    return f"saves {seconds * 1e3:.3g} ms" if seconds >= 0 else f"costs {-seconds * 1e3:.3g} ms"


@dataclasses.dataclass(frozen=True)
class SearchOutcome:
    """The outcome of a search.

    Attributes:
      moves: what it found, as tactics of their own.
      entered: what each of them decided, after those before it.
      log: the log of the search.
    """

    moves: tuple[Move, ...]
    entered: tuple[EnteredMove, ...]
    log: SearchLog


@dataclasses.dataclass(frozen=True)
class Automatic:
    """Finds by search the arrays to split over some axes; earlier decisions stay as they are.

    Attributes:
      axes: mesh axes.
      goal: the goal of the search.
      budget: its budget.
      name: what the plan calls it.
    """

    axes: tuple[str, ...]
    goal: Goal = Goal()
    budget: Budget = Budget()
    name: str = "automatic"

    def __post_init__(self) -> None:
        if isinstance(self.axes, str):
            object.__setattr__(self, "axes", (self.axes,))
        object.__setattr__(self, "axes", tuple(self.axes))
        if not self.axes or len(set(self.axes)) != len(self.axes):
            raise ValueError(
                f"Automatic(axes={self.axes}): name one or more different axes of the mesh"
            )

    @property
    def axis(self) -> str:
        """The axes in one text, as a plan shows them."""
        return "+".join(self.axes)

    @classmethod
    def parse(cls, text: str) -> Automatic:
        """Finds what to split over the axes, by search; several are written "model+data"."""
        return cls(tuple(part.strip() for part in text.split("+")))

    def search(self, context: Context) -> SearchOutcome:
        """Searches from the decisions so far.

        Raises:
          ValueError: no plan can reach the goal, or no plan that was found does.
        """
        started = time.monotonic()
        judge = context.judge
        if judge is None:
            raise ValueError(f"tactic {self.name!r} is entered by a plan, which knows the device")
        axes = tuple(a for a in self.axes if context.mesh[a] > 1)
        limit = (self.goal.memory or 1.0) * judge.device.memory_bytes
        recomputed_to = judge.recomputed_to
        if recomputed_to is not None:
            limit = recomputed_to if self.goal.memory is None else min(limit, recomputed_to)
        space = Space(context, axes)
        if self.goal.memory is not None:
            self._check_goal(space, limit)

        def cost(estimated: Estimated) -> float:
            return _cost(estimated.seconds, estimated.peak, limit, recomputed_to is not None)

        budget = self.budget
        search = Search(space, cost, budget.estimates, budget.seconds, budget.seed)
        ranked = search.run()
        judged = [
            (candidate, space.simulated(candidate.moves))
            for candidate in _different(ranked, budget.judged)
        ]
        judged.sort(key=lambda item: _rank(item[1], limit))
        more = _with_zero(space, judged[0][0], cost, budget.judged)
        whole, found = search.candidates[0], [candidate for candidate, _ in judged]
        if whole not in found and whole.cost <= (1 + _ERROR_OF_TIME) * found[0].cost:
            more.append(whole)  # To split nothing more is always an answer.
        judged += [(candidate, space.simulated(candidate.moves)) for candidate in more]
        judged.sort(key=lambda item: _rank(item[1], limit))
        judged = _simplest(judged, limit)
        taken, simulated, without = _prune(space, *judged[0], limit)
        judged[0] = taken, simulated
        if self.goal.memory is not None and simulated.peak_memory_bytes > limit:
            least = min(s.peak_memory_bytes for _, s in judged)
            raise ValueError(
                f"tactic {self.name!r}: infeasible: of the plans found the smallest needs "
                f"{amount(least, 'B', 1024)} and the goal is {amount(limit, 'B', 1024)} of "
                f"{judge.device.name}; give more devices, a larger goal, or more estimates"
            )
        seconds = simulated.predicted_seconds.total
        saves = tuple(other - seconds for other in without)
        log = SearchLog(
            len(search.candidates),
            (len(space.classes.nodes), len(context.graph.nodes)),
            time.monotonic() - started,
            _best_so_far(search.candidates),
            tuple(_tried(c, s, simulated, limit) for c, s in judged),
            saves,
        )
        return SearchOutcome(taken.moves, space.entered(taken.moves), log)

    def actions(self, context: Context) -> Sequence[Any]:
        """The actions of the first move that a search finds; a plan enters all moves one by one."""
        found = self.search(context)
        return found.moves[0].actions(context) if found.moves else ()

    def _check_goal(self, space: Space, limit: float) -> None:
        """Raises ValueError if arguments and results do not fit when split as far as possible."""
        baseline = space.estimate.baseline
        axes = [a for a in self.axes if space.context.mesh[a] > 1]
        least = least_bytes([*baseline.arguments, *baseline.results], space.context.state, axes)
        if least > limit:
            raise ValueError(
                f"tactic {self.name!r}: the goal is {amount(limit, 'B', 1024)} of "
                f"{space.judge.device.name}, and the arguments alone need "
                f"{amount(least, 'B', 1024)}, with results that are not theirs, where each is "
                f"split as far as it can be over {', '.join(axes) or 'nothing'}; give more "
                "devices or a larger goal"
            )


def _cost(seconds: float, nbytes: float, limit: float, recomputes: bool = False) -> float:
    """Seconds, many more where memory does not suffice; of equal ones, less memory is better.

    Where activations may be computed again, they take up to half of the time once more, and no more
    than so much of memory is theirs.
    """
    over = max(nbytes / limit - 1.0, 0.0)
    if recomputes:
        over = 0.03 * min(over, _MOST_RECOMPUTED) + max(over - _MOST_RECOMPUTED, 0.0)
    return seconds * (1.0 + 10.0 * over + 1e-4 * min(nbytes / limit, 1.0))


def _rank(simulated: Simulation, limit: float) -> tuple[bool, float]:
    nbytes = simulated.peak_memory_bytes
    fits = nbytes <= limit
    return (not fits, simulated.predicted_seconds.total if fits else float(nbytes))


def _better(one: Simulation, other: Simulation, limit: float) -> bool:
    """True if one is as good as the other, or nearly so."""
    (large, cost), (other_large, other_cost) = _rank(one, limit), _rank(other, limit)
    return large < other_large or (large == other_large and cost <= other_cost * (1 + _NEARLY))


def _simplest(
    judged: list[tuple[Candidate, Simulation]], limit: float
) -> list[tuple[Candidate, Simulation]]:
    """Of those that are nearly as good as the first, the one with the fewest moves comes first."""
    best = judged[0][1]
    near = [item for item in judged if _better(item[1], best, limit)]
    first = min(near, key=lambda item: len(item[0].moves))
    return [first, *(item for item in judged if item is not first)]


def _with_zero(
    space: Space, candidate: Candidate, cost: Callable[[Estimated], float], count: int
) -> list[Candidate]:
    """The candidate with one tactic of ZeRO more, best estimates first.

    Estimates err most where gradients are summed within loops: there ZeRO can be worth more than it
    seems. Those that the estimates rule out all the same are left out; over an axis that has one,
    as for large arrays alone, they rule out more.
    """
    used = {move.axis for move in candidate.moves if isinstance(move.tactic, _ZERO)}
    found: list[Candidate] = []
    for move in space.moves:
        if not isinstance(move.tactic, _ZERO) or move in candidate.moves:
            continue
        moves = (*candidate.moves, move)
        estimated = space.estimated(moves)
        more = Candidate(moves, estimated, cost(estimated), candidate.at)
        error = _ERROR_OF_MORE if move.axis in used else _ERROR_OF_TIME
        is_near = more.cost <= (1 + error) * candidate.cost
        if is_near and not any(_alike(more, other) for other in (candidate, *found)):
            found.append(more)
    return sorted(found, key=lambda c: c.cost)[:count]


def _prune(
    space: Space, candidate: Candidate, simulated: Simulation, limit: float
) -> tuple[Candidate, Simulation, list[float]]:
    """Leaves out moves that the simulator finds no worse to do without; the last ones first.

    Returns:
      The candidate that is left, its simulation, and for each of its moves the seconds of the
      others without it.
    """
    moves, estimated, without = list(candidate.moves), candidate.estimated, []
    for i in range(len(moves) - 1, -1, -1):
        fewer = [*moves[:i], *moves[i + 1 :]]
        other = space.estimated(fewer)
        gap = simulated.predicted_seconds.total / estimated.seconds
        fits = simulated.peak_memory_bytes <= limit
        most = limit if fits else estimated.peak
        recomputes = space.judge.recomputed_to is not None
        if not recomputes and _clearly_worse(other, estimated.seconds if fits else None, most):
            without.append(other.seconds * gap)
            continue
        found = space.simulated(fewer)
        if _better(found, simulated, limit):
            moves, simulated, estimated = fewer, found, other
        else:
            without.append(found.predicted_seconds.total)
    if len(moves) < len(candidate.moves):
        candidate = dataclasses.replace(candidate, moves=tuple(moves), estimated=estimated)
    return candidate, simulated, without[::-1]


def _clearly_worse(estimated: Estimated, seconds: float | None, most: float) -> bool:
    """True if a candidate is beyond so many seconds, or the most bytes, by more than estimates err;
    seconds do not matter beside what does not fit.
    """
    slow = seconds is not None and estimated.seconds > (1 + _ERROR_OF_TIME) * seconds
    return slow or estimated.peak > (1 + _ERROR_OF_MEMORY) * most


def _different(ranked: Sequence[Candidate], count: int) -> list[Candidate]:
    """The first `count` candidates that differ in their estimated cost.

    A third are the first that consist of known tactics alone, as people would write them: where all
    estimates are wrong in one way, these are wrong in another.
    """
    known = [c for c in ranked if all(move.tactic is not None for move in c.moves)]
    found: list[Candidate] = []
    for candidates, most in ((ranked, count - count // 3), (known, count), (ranked, count)):
        for candidate in candidates:
            if len(found) < most and not any(_alike(candidate, other) for other in found):
                found.append(candidate)
    return found


def _alike(one: Candidate, other: Candidate) -> bool:
    a, b = one.estimated, other.estimated
    same = math.isclose(a.seconds, b.seconds, rel_tol=1e-3)
    return same and math.isclose(a.peak, b.peak, rel_tol=1e-3)


def _best_so_far(candidates: Sequence[Candidate]) -> tuple[tuple[int, float], ...]:
    found: list[tuple[int, float]] = []
    least = math.inf
    for candidate in candidates:
        if candidate.cost < least:
            least = candidate.cost
            found.append((candidate.at, candidate.estimated.seconds))
    return tuple(found)


def _tried(candidate: Candidate, simulated: Simulation, best: Simulation, limit: float) -> Judged:
    seconds, nbytes = simulated.predicted_seconds.total, simulated.peak_memory_bytes
    if simulated is best:
        why = "taken"
    elif nbytes > limit:
        why = f"too large by {amount(nbytes - limit, 'B', 1024)}"
    else:
        slower = seconds / best.predicted_seconds.total - 1
        why = f"{slower:.1%} slower" if slower >= 0.0005 else "as fast"
    return Judged(
        tuple(move.name for move in candidate.moves),
        candidate.estimated.seconds,
        candidate.estimated.peak,
        seconds,
        nbytes,
        why,
    )
