"""The loop of acting, and what comes between two steps of it where the learner is here too."""

from __future__ import annotations

import collections
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol

import dm_env
import numpy as np

from ..episodes import EndedEpisode
from ..signals import Stop

if TYPE_CHECKING:
    from ...agents.interfaces import Actor, ManagedLearner
    from ...agents.replay.interface import Replay
    from ...environments import Vector

_FIRST, _MID, _LAST = (int(kind) for kind in dm_env.StepType)


class TrainingLoop(Protocol):
    """A loop that goes on with training between evaluations and checkpoints."""

    @property
    def actor_steps(self) -> int:
        """Actions taken, over all environments."""

    @property
    def episodes(self) -> int:
        """Episodes ended."""

    @property
    def finished(self) -> Sequence[EndedEpisode]:
        """The newest hundred episodes, the newest last."""

    @property
    def steps(self) -> int:
        """Of the run's clock."""

    def advance(self, until: float, deadline: float, stop: Stop) -> None:
        """Goes on until the steps are done, the time is over or a stop is requested.

        Args:
          until: value of `steps` to reach; passed by at most N - 1.
          deadline: value of `time.perf_counter()`; at least one step is taken.
          stop: looked at meanwhile.
        """


class CatchUp:
    """Has the learner of this process step as far as the replay lets it.

    Where nothing bounds that, it is one step of the learner: there would be no end to it.
    """

    def __init__(
        self,
        step: Callable[[], None],
        replay: Replay,
        steps_per_dispatch: int,
        stop: Stop | None = None,
    ):
        """Takes what it asks and steps.

        Args:
          step: the learner's; draws from the replay.
          replay: says when it may.
          steps_per_dispatch: gradient steps of one `step`.
          stop: looked at between two steps; None: nobody stops it.
        """
        self._step, self._can_sample, self._stop = step, replay.can_sample, stop or Stop()
        self._batches, self._bounded = steps_per_dispatch, replay.spec.is_bounded

    def __call__(self) -> bool:
        """Steps where the replay lets it; True if it has stepped."""
        if not self._can_sample(self._batches):
            return False
        self._step()
        while self._bounded and self._can_sample(self._batches) and not self._stop.requested:
            self._step()
        return True


class Loop:
    """Steps N environments with one actor.

    Attributes:
      actor_steps: actions taken, over all environments. A step that starts an episode takes none.
      episodes: episodes ended.
      finished: the newest hundred episodes, the newest last.
    """

    def __init__(
        self,
        environment: Vector,
        actor: Actor,
        between: Callable[[], bool],
        *,
        actor_steps: int = 0,
        episodes: int = 0,
    ):
        """Takes over the environment, which starts new episodes.

        Args:
          environment: a vector of N environments.
          actor: acts in all of them and writes to the replay.
          between: called after every step; whether there are newer parameters for the actor.
          actor_steps: where to count on from.
          episodes: likewise.
        """
        self._environment = environment
        self._actor = actor
        self._between = between
        self.actor_steps = actor_steps
        self.episodes = episodes
        self.finished: collections.deque[EndedEpisode] = collections.deque(maxlen=100)
        n = environment.num_envs
        self._returns = np.zeros(n)
        self._lengths = np.zeros(n, np.int64)
        self._timestep = environment.reset()
        actor.observe_first(self._timestep)

    @property
    def steps(self) -> int:
        """Of the run's clock."""
        return self.actor_steps

    def advance(self, until: float, deadline: float, stop: Stop) -> None:
        """Goes on until the steps are done, the time is over or a stop is requested.

        Args:
          until: value of `steps` to reach; passed by at most N - 1.
          deadline: value of `time.perf_counter()`; at least one step is taken.
          stop: looked at before every step.
        """
        select_action, observe = self._actor.select_action, self._actor.observe
        step, between, update = self._environment.step, self._between, self._actor.update
        returns = self._returns
        n = self._environment.num_envs
        all_mid = [_MID] * n
        timestep, steps, clock = self._timestep, self.actor_steps, time.perf_counter
        boundary = steps  # Steps before this one are in `_lengths`.
        try:
            while steps < until and stop.signal_number is None:
                action = select_action(timestep.observation)
                timestep = step(action)
                observe(action, timestep)
                returns += timestep.reward
                kinds = timestep.step_type
                if kinds.tolist() == all_mid:
                    steps += n
                else:
                    self._lengths += (steps - boundary) // n
                    steps += self._count(kinds)
                    boundary = steps
                if between():
                    update()
                if clock() >= deadline:
                    break
        finally:
            self._lengths += (steps - boundary) // n
            self._timestep, self.actor_steps = timestep, steps

    def _count(self, kinds: np.ndarray) -> int:
        """Counts a time step that is not in the middle of every episode; returns its actions."""
        acted = kinds != _FIRST
        self._lengths += acted
        for i in (kinds == _LAST).nonzero()[0]:
            self.episodes += 1
            info = self._environment.episode_info(i)
            self.finished.append(EndedEpisode(float(self._returns[i]), int(self._lengths[i]), info))
            self._returns[i], self._lengths[i] = 0.0, 0
        return int(np.count_nonzero(acted))


class LearningLoop:
    """The loop of a run in which nobody acts: steps of the learner; else as `Loop`."""

    actor_steps = 0
    episodes = 0
    finished: Sequence[EndedEpisode] = ()

    def __init__(self, learner: ManagedLearner):
        self._learner = learner

    @property
    def steps(self) -> int:
        return self._learner.steps

    def advance(self, until: float, deadline: float, stop: Stop) -> None:
        """Goes on until the steps are done, the time is over or a stop is requested."""
        step, clock = self._learner.step, time.perf_counter
        while self.steps < until and stop.signal_number is None:
            step()
            if clock() >= deadline:
                break
