"""Runs that differ in their seed or in numbers of their config, as one program.

Each member of a population is a run of its own, with all that a run has, in a thread of its own.
Where it would go on with its program or play episodes it asks, and all are answered together. So
they go on in lockstep, and a member that ends, for whatever reason, leaves the others.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import jax

from ...agents.programs.whole_loop import LoopState, Progress, WholeLoop
from ...environments.functional import FunctionalEnvironment
from .episodes import EpisodePrograms
from .meeting import Meeting
from .program import LoopProgram

Nest = Any
_Question = TypeVar("_Question")
_BLOCK_SECONDS = 0.1
"""Of one call of the program, after which signals are looked at."""


class Keys(NamedTuple):
    """From which all that is random in a run follows."""

    streams: jax.Array
    """[N], of the environments"""
    actor: jax.Array
    learner: jax.Array
    replay: jax.Array


class _Advance(NamedTuple):
    """Asks to go on."""

    until: int


class Play(NamedTuple):
    """Asks for whole episodes of one run. Fields: arguments of `EpisodePrograms.play`."""

    environment: FunctionalEnvironment
    episodes: int
    keys: jax.Array
    key: jax.Array
    params: Nest
    stopped: Callable[[], bool]
    opponent: Nest = ()

    @property
    def kind(self) -> tuple[int, int, bool]:
        """What episodes that are played together have in common."""
        return self.episodes, len(self.keys), not jax.tree.leaves(self.opponent)


class Population:
    """The state of a program of S runs, which their members ask to go on."""

    def __init__(self, size: int | None, build: Callable[[], tuple[LoopProgram, EpisodePrograms]]):
        """Builds nothing yet.

        Args:
          size: S; None: one run, whose arrays have no leading dimension.
          build: makes the programs, once all members have begun.
        """
        self._size, self._build = size, build
        self._meeting = Meeting(size or 1, self._answer)
        self._turns = 1
        self._replay_keys: jax.Array
        self.program: LoopProgram
        self.episodes: EpisodePrograms
        self.state: LoopState

    def join(self, index: int, keys: Keys) -> PopulationMember:
        """Returns a member that begins, once all do.

        Args:
          index: of the member.
          keys: of its run.
        """
        self._meeting.ask(index, keys)
        return PopulationMember(self, self._meeting, index)

    def leave(self, index: int) -> None:
        """Has the others go on alone."""
        self._meeting.leave(index)

    def _answer(self, asked: Mapping[int, Any]) -> Mapping[int, Any]:
        if begins := _those(asked, Keys):
            return self._begin(begins)
        # Whoever has come to its evaluation waits for the others: they are judged together.
        if goes_on := _those(asked, _Advance):
            return self._go_on(goes_on)
        return self._play(_those(asked, Play))

    def _begin(self, begins: Mapping[int, Keys]) -> Mapping[int, Any]:
        self.program, self.episodes = self._build()
        keys = self._together([begins[index] for index in self._filled(begins)])
        self._replay_keys = jax.device_put(keys.replay, self.program.layout.sharding)
        self.state = self.program.init(keys.streams, keys.actor, keys.learner)
        return dict.fromkeys(begins)

    def _go_on(self, asked: Mapping[int, _Advance]) -> Mapping[int, Progress]:
        until = [asked[index].until if index in asked else 0 for index in range(self._size or 1)]
        began = time.perf_counter()
        self.state, progress = self.program.advance(
            self.state, self._replay_keys, until[0] if self._size is None else until, self._turns
        )
        found = jax.device_get(progress)
        # The first call compiles, and says nothing of how long the next will take.
        pace = _BLOCK_SECONDS / max(time.perf_counter() - began, 1e-4)
        self._turns = max(1, int(self._turns * min(max(pace, 0.5), 4.0)))
        return {index: self._of_run(found, index) for index in asked}

    def _play(self, asked: Mapping[int, Play]) -> Mapping[int, list[float] | None]:
        first = next(iter(asked.values()))
        same = {index: one for index, one in asked.items() if one.kind == first.kind}
        runs = [same[index] for index in self._filled(same)]
        keys, key, params, opponent = (
            self._together([getattr(one, name) for one in runs])
            for name in ("keys", "key", "params", "opponent")
        )
        returns = self.episodes.play(
            first.environment, first.episodes, keys, key, params, first.stopped, opponent
        )
        if returns is None:
            return dict.fromkeys(same)
        return {index: self._of_run(returns, index).tolist() for index in same}

    def _filled(self, present: Mapping[int, Any]) -> Sequence[int]:
        """Returns indices [S] of members that are present; they stand for those that are not."""
        some = next(iter(present))
        return [index if index in present else some for index in range(self._size or 1)]

    def _together(self, nests: Sequence[Nest]) -> Nest:
        if self._size is None:
            return nests[0]
        return self.program.layout.together(nests)

    def _of_run(self, nest: Nest, index: int) -> Nest:
        return nest if self._size is None else jax.tree.map(lambda leaf: leaf[index], nest)


class PopulationMember:
    """One run of a population, as its parts see it.

    Attributes:
      progress: numpy arrays, of the last `advance`.
    """

    def __init__(self, population: Population, meeting: Meeting, index: int):
        """Takes a member that has joined."""
        self._population, self._meeting, self._index = population, meeting, index
        self._progress: Progress | None = None

    @property
    def device(self) -> jax.Device:
        """Of the program; the first of several."""
        return self._population.program.layout.device

    @property
    def note(self) -> str:
        """A line that says what of the run its mesh does not spread; empty: there is none."""
        return self._population.program.layout.note

    @property
    def loop(self) -> WholeLoop:
        """Of one run, with no settings of its own."""
        return self._population.program.loop

    @property
    def progress(self) -> Progress:
        if self._progress is None:
            self._progress = jax.device_get(self.read(_progress))
        return self._progress

    def read(self, select: Callable[..., Nest]) -> Nest:
        """Returns what `select(loop, state)` takes from the state: good until it goes on."""
        population = self._population
        with self._meeting.held():
            return population.program.read(population.state, self._index, select)

    def change(self, change: Callable[..., LoopState], *arguments: Nest) -> None:
        """Makes the state `change(loop, state, *arguments)`."""
        population = self._population
        with self._meeting.held():
            population.state = population.program.change(
                population.state, self._index, change, *arguments
            )
        self._progress = None

    def advance(self, until: int) -> None:
        """Goes on until a number of actor steps is taken, for about a tenth of a second."""
        self._progress = self._meeting.ask(self._index, _Advance(until))

    def play(self, asked: Play) -> list[float] | None:
        """Returns the returns of whole episodes; None: it was stopped."""
        found: list[float] | None = self._meeting.ask(self._index, asked)
        return found


def _those(asked: Mapping[int, Any], kind: type[_Question]) -> dict[int, _Question]:
    """Returns the questions of one kind."""
    return {index: one for index, one in asked.items() if isinstance(one, kind)}


def _progress(loop: Any, state: LoopState) -> Progress:
    progress: Progress = loop.progress(state)
    return progress
