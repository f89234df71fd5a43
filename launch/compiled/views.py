"""The parts of a compiled run as the parts of any other: views of the one state of its program."""

from __future__ import annotations

import collections
import functools
import time
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np

from ...agents.programs.whole_loop import MOST_EPISODES, LoopState, WholeLoop
from ...agents.replay.items import ReplaySpec
from ...agents.snapshots import check, from_host, to_host, typed, word_shapes, words_of
from ..episodes import EndedEpisode
from ..signals import Stop
from .population import PopulationMember

Nest = Any
_WRAP = 1 << 32
_KEPT = ("streams", "timestep", "policy", "returns", "lengths", "finished")
"""Of what acting changes, what checkpoints hold beside the replay."""


class CompiledLearner:
    """The learning in a program, as a `ManagedLearner` that steps with it alone."""

    def __init__(self, member: PopulationMember):
        """Takes the run."""
        self._member = member
        self.variable_names: tuple[str, ...] = member.loop.variable_names
        self.remarks = member.loop.remarks
        self._restored = 0

    @property
    def steps(self) -> int:
        return int(self._member.progress.learner_steps)

    @property
    def version(self) -> int:
        return self.steps + self._restored

    def get_variables(self, names: Sequence[str] = ("policy",)) -> list[Nest]:
        unknown = [name for name in names if name not in self.variable_names]
        if unknown:
            raise KeyError(f"No variables named {unknown}; there are {list(self.variable_names)}.")
        found: list[Nest] = self._member.read(_variables(tuple(names)))
        return found

    def metrics(self) -> Mapping[str, float]:
        progress = self._member.progress
        if not progress.learner_steps:
            return {}
        return {name: float(value) for name, value in progress.metrics.items()}

    @property
    def saved_shapes(self) -> Nest:
        # With shardings: what lies on several devices is read where it belongs.
        shapes = jax.tree.map(
            lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=leaf.sharding),
            self._member.read(_update_state),
        )
        return {"steps": jax.ShapeDtypeStruct((), np.int64), "state": word_shapes(shapes)}

    def live_state(self) -> Nest:
        state = jax.tree.map(words_of, self._member.read(_update_state))
        return {"steps": np.int64(self.steps), "state": state}

    def save(self) -> Nest:
        return to_host(self.live_state())

    def restore(self, state: Nest) -> None:
        """Takes back what a learner of this update saved, in whatever launch."""
        like = self._member.read(_update_state)
        check(state["state"], self.saved_shapes["state"])
        restored = jax.tree.map(typed, state["state"], like)
        self._member.change(_with_learner, restored, np.int32(int(state["steps"])))
        self._restored += 1

    def assist(self, names: Sequence[str]) -> None:
        self.get_variables(names)

    def step(self) -> None:
        raise NotImplementedError("a compiled run's learner steps within its program")

    def run(self) -> None:
        raise NotImplementedError("a compiled run's learner steps within its program")


class CompiledActor:
    """The acting in a program: streams, policy and episodes so far, which checkpoints hold.

    Unlike other actors it goes on in the middle of episodes.
    """

    part = "streams"
    """Name in checkpoints: it is no other actor's state."""

    def __init__(self, member: PopulationMember):
        """Takes the run."""
        self.member = member

    def save(self) -> Nest:
        return to_host(self.member.read(_kept))

    def restore(self, state: Nest) -> None:
        """Takes back what `save` gave; the replay goes on with the present step of each episode."""
        self.member.change(_with_kept, from_host(state, self.member.read(_kept)))

    def set_num_actions(self, count: int) -> None:
        """Has schedules go on as if every stream had taken `count` actions."""
        self.member.change(WholeLoop.with_num_actions, np.int32(count))


class CompiledReplay:
    """The replay in a program, as much of one as a run asks for."""

    part = "device_replay"
    """Name in checkpoints: its arrays are no other replay's."""

    def __init__(self, member: PopulationMember):
        """Takes the run."""
        self._member, self._functions = member, member.loop.replay
        self._inserted = self._sampled = 0

    @property
    def spec(self) -> ReplaySpec:
        return self._functions.spec

    @property
    def num_bytes(self) -> int:
        return self._functions.num_bytes

    def count(self) -> None:
        """Counts on from the device's 32 bits, which a run may wrap around; call it often."""
        progress = self._member.progress
        self._sampled += (int(progress.sampled) - self._sampled) % _WRAP
        self._inserted = int(progress.inserted)

    def __len__(self) -> int:
        return int(self._member.progress.size)

    @property
    def inserted(self) -> int:
        return self._inserted

    @property
    def sampled(self) -> int:
        return self._sampled

    @property
    def observed_samples_per_insert(self) -> float:
        since = self._inserted - self._functions.first_sampled_at
        return self._sampled / since if since > 0 else 0.0

    def save(self) -> Nest:
        return to_host(self._member.read(_replay))

    def restore(self, state: Nest) -> None:
        """Takes back what `save` gave."""
        self._member.change(_with_replay, from_host(state, self._member.read(_replay)))

    def close(self) -> None:
        """Nothing is to be closed here."""


class CompiledLoop:
    """Goes on with a program, as `local.loop.Loop` does with an environment and an actor.

    Attributes:
      finished: the newest hundred episodes, the newest last.
    """

    def __init__(
        self,
        member: PopulationMember,
        replay: CompiledReplay,
        *,
        actor_steps: int = 0,
        episodes: int = 0,
    ):
        """Goes on from where a run is.

        Args:
          member: the run.
          replay: whose counts it keeps.
          actor_steps: taken before.
          episodes: ended before.
        """
        self._member, self._replay = member, replay
        if actor_steps or episodes:
            member.change(_with_counts, np.int32(actor_steps), np.int32(episodes))
        self.actor_steps, self.episodes = actor_steps, episodes
        self.finished: collections.deque[EndedEpisode] = collections.deque(maxlen=MOST_EPISODES)

    @property
    def steps(self) -> int:
        """Of the run's clock."""
        return self.actor_steps

    def advance(self, until: float, deadline: float, stop: Stop) -> None:
        """Goes on until the steps are done, the time is over or a stop is requested.

        Args:
          until: value of `steps` to reach; passed by at most N - 1.
          deadline: value of `time.perf_counter()`; the program is called once at the least.
          stop: looked at every tenth of a second.
        """
        most = int(min(until, 2**31 - 1))
        while self.actor_steps < until and stop.signal_number is None:
            self._member.advance(most)
            self._read()
            if time.perf_counter() >= deadline:
                break

    def _read(self) -> None:
        """Reads the counts and the episodes that have ended."""
        progress = self._member.progress
        before = self.episodes
        self.actor_steps, self.episodes = int(progress.actor_steps), int(progress.episodes)
        self._replay.count()
        rows = progress.finished
        newest = min(len(rows), MOST_EPISODES)
        for episode in range(max(before, self.episodes - newest), self.episodes):
            total, length = rows[episode % len(rows)]
            self.finished.append(EndedEpisode(float(total), int(length)))


# What views read and change, compiled once for all runs.


@functools.cache
def _variables(names: tuple[str, ...]) -> Any:
    def select(loop: WholeLoop, state: LoopState) -> list[Nest]:
        return loop.variables(state, names)

    return select


def _update_state(loop: WholeLoop, state: LoopState) -> Nest:
    return state.learning.state


def _with_learner(loop: WholeLoop, state: LoopState, restored: Nest, steps: jax.Array) -> LoopState:
    return state._replace(learning=state.learning._replace(state=restored, steps=steps))


def _kept(loop: WholeLoop, state: LoopState) -> dict[str, Nest]:
    acting = state.acting._asdict()
    # Games against oneself have more to keep.
    more = ("versions",) if jax.tree.leaves(acting["versions"]) else ()
    return {name: acting[name] for name in _KEPT + more}


def _with_kept(loop: WholeLoop, state: LoopState, kept: dict[str, Nest]) -> LoopState:
    replay = loop.empty_replay(kept["timestep"])
    return state._replace(acting=state.acting._replace(**kept, replay=replay))


def _replay(loop: WholeLoop, state: LoopState) -> Nest:
    return state.acting.replay


def _with_replay(loop: WholeLoop, state: LoopState, replay: Nest) -> LoopState:
    return state._replace(acting=state.acting._replace(replay=replay))


def _with_counts(
    loop: WholeLoop, state: LoopState, actor_steps: jax.Array, episodes: jax.Array
) -> LoopState:
    acting = state.acting._replace(actor_steps=actor_steps, episodes=episodes)
    return state._replace(acting=acting)
