"""The loop of one process: environments, actor and learner in turn, at the pace of the replay."""

from __future__ import annotations

import collections
import time
from typing import TYPE_CHECKING, Any

import dm_env
import numpy as np

from ..signals import Stop

if TYPE_CHECKING:
    from ...environments import Vector

_FIRST, _MID, _LAST = (int(kind) for kind in dm_env.StepType)


class Loop:
    """Steps N environments with one actor, and lets the learner catch up after every step.

    Attributes:
      actor_steps: actions taken, over all environments. A step that starts an episode takes none.
      episodes: episodes ended.
      finished: (return, length) of the newest hundred episodes, the newest last.
    """

    def __init__(
        self,
        environment: Vector,
        actor: Any,
        learner: Any,
        replay: Any,
        *,
        steps_per_dispatch: int,
        actor_steps: int = 0,
        episodes: int = 0,
    ):
        """Takes over the environment, which starts new episodes.

        Args:
          environment: a vector of N environments.
          actor: acts in all of them and writes to the replay.
          learner: draws from the replay.
          replay: says when the learner may step.
          steps_per_dispatch: gradient steps of one `learner.step()`.
          actor_steps: where to count on from.
          episodes: likewise.
        """
        self._environment = environment
        self._actor = actor
        self._learner = learner
        self._replay = replay
        self._steps_per_dispatch = steps_per_dispatch
        self._bounded = replay.spec.is_bounded
        self.actor_steps = actor_steps
        self.episodes = episodes
        self.finished: collections.deque[tuple[float, int]] = collections.deque(maxlen=100)
        n = environment.num_envs
        self._returns = np.zeros(n)
        self._lengths = np.zeros(n, np.int64)
        self._timestep = environment.reset()
        actor.observe_first(self._timestep)

    def advance(self, until: float, deadline: float, stop: Stop) -> None:
        """Goes on until the steps are done, the time is over or a stop is requested.

        Args:
          until: value of `actor_steps` to reach; passed by at most N - 1.
          deadline: value of `time.perf_counter()`; at least one step is taken.
          stop: looked at before every step.
        """
        select_action, observe = self._actor.select_action, self._actor.observe
        step, can_sample = self._environment.step, self._replay.can_sample
        batches, returns = self._steps_per_dispatch, self._returns
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
                kinds = timestep.step_type.tolist()
                if kinds == all_mid:
                    steps += n
                else:
                    self._lengths += (steps - boundary) // n
                    steps += n - kinds.count(_FIRST)
                    boundary = steps
                    self._count(kinds)
                if can_sample(batches):
                    self._learn()
                if clock() >= deadline:
                    break
        finally:
            self._lengths += (steps - boundary) // n
            self._timestep, self.actor_steps = timestep, steps

    def _count(self, kinds: list[int]) -> None:
        """Counts the steps of a time step that is not in the middle of every episode."""
        for i, kind in enumerate(kinds):
            self._lengths[i] += kind != _FIRST
            if kind == _LAST:
                self.episodes += 1
                self.finished.append((float(self._returns[i]), int(self._lengths[i])))
                self._returns[i], self._lengths[i] = 0.0, 0

    def _learn(self) -> None:
        """Steps the learner as far as the replay lets it; the actor then has what it learned.

        Where nothing bounds that, it is one step of the learner: there would be no end to it.
        """
        self._learner.step()
        while self._bounded and self._replay.can_sample(self._steps_per_dispatch):
            self._learner.step()
        self._actor.update()
