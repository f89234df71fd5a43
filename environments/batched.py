"""Environments that Gymnasium steps as one, with numpy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import dm_env
import gymnasium
import numpy as np
from gymnasium.utils import seeding

from . import specs
from .errors import InvalidActionError
from .gymnasium_adapter import GymnasiumEnvironment
from .vector import Vector

_FIRST, _, _LAST = (int(kind) for kind in dm_env.StepType)
_EQUAL = ("gymnasium.envs.classic_control.cartpole:CartPoleVectorEnv",)
"""Vector environments that do in every row what the single environment does, once each row draws
from a generator of its own. (Those of phys2d do not: where one of their environments is reset, the
others lose a step.)"""
_FEWEST = 8
"""A step of these takes as long as about six of single environments."""


def make(first: dm_env.Environment, seeds: Sequence[int]) -> Vector | None:
    """A vector of environments like `first`, stepped as one; None where Gymnasium has none.

    Args:
      first: the first of them, as it was made; what it draws images with is not for many.
      seeds: of each environment.
    """
    if not isinstance(first, GymnasiumEnvironment) or len(seeds) < _FEWEST:
        return None
    environment = first.unwrapped
    specification = environment.spec
    if specification is None or specification.vector_entry_point not in _EQUAL:
        return None
    if environment.render_mode is not None:
        return None
    batch = gymnasium.make_vec(
        specification,
        num_envs=len(seeds),
        vectorization_mode="vector_entry_point",
        max_episode_steps=first.max_episode_steps,
    )
    # Before Gymnasium 1.1 they do not say when they start the next episode.
    if getattr(batch.metadata.get("autoreset_mode"), "name", "") != "NEXT_STEP":
        return None
    return BatchedVector(first, batch, seeds)


class BatchedVector(Vector):
    """N environments of discrete actions in one of Gymnasium's; row by row as a `Vector`."""

    def __init__(
        self, first: GymnasiumEnvironment, batch: gymnasium.vector.VectorEnv, seeds: Sequence[int]
    ) -> None:
        """Takes over the environments.

        Args:
          first: one of them, which is asked for specs and never stepped.
          batch: starts an episode with the step after the last of one.
          seeds: of each environment.
        """
        super().__init__([first] * len(seeds))
        self._first, self._batch, self._draws = first, batch, _Draws(seeds)
        batch.np_random = self._draws  # type: ignore[assignment]
        self._most = self._spec.actions.num_values - 1
        self._clip = first.reward_clip
        self._over: np.ndarray | None = None  # Who stands at LAST, [N] bool; None: not yet reset.

    def reset(self) -> dm_env.TimeStep:
        """Starts a new episode in every environment, whatever it was doing."""
        n = self.num_envs
        self._draws.rows = np.arange(n)
        observation, _ = self._batch.reset()
        self._over = np.zeros(n, bool)
        zeros, ones = np.zeros(n, np.float32), np.ones(n, np.float32)
        kinds = np.full(n, _FIRST, np.int32)
        return dm_env.TimeStep(kinds, zeros, ones, np.ascontiguousarray(observation))

    def step(self, actions: specs.Nest) -> dm_env.TimeStep:
        """Steps every environment.

        Raises:
          InvalidActionError: if the leading dimension is not N, or an action does not fit.
        """
        taken = np.asarray(actions)
        if not (
            taken.shape == self._action_shapes[0]
            and taken.dtype.kind in "iu"
            and taken.min() >= 0
            and taken.max() <= self._most
        ):
            taken = self._checked(actions)
        over = self._over
        if over is None:
            return self.reset()
        self._draws.rows = over.nonzero()[0]
        observation, reward, terminated, truncated, _ = self._batch.step(taken)
        self._over = last = terminated | truncated
        kinds = self._all_mid.copy()
        kinds[last], kinds[over] = _LAST, _FIRST
        if self._clip is not None:
            np.clip(reward, -self._clip, self._clip, out=reward)
        discount = np.subtract(1, terminated, dtype=np.float32)
        return dm_env.TimeStep(kinds, reward, discount, np.ascontiguousarray(observation))

    def close(self) -> None:
        """Closes every environment."""
        self._batch.close()
        self._first.close()

    def _checked(self, actions: specs.Nest) -> np.ndarray:
        """The actions as integers, looked at one by one."""
        taken = []
        for i, action in enumerate(self._rows(actions)):
            try:
                taken.append(self._first._take(action))
            except InvalidActionError as fault:
                raise InvalidActionError(f"environment {i} of {self.num_envs}: {fault}") from fault
        return np.array(taken)


class _Draws:
    """In place of a vector environment's generator: one for each row, as single environments have.

    Attributes:
      rows: of whom the next draw is, in order.
    """

    def __init__(self, seeds: Sequence[int]) -> None:
        self._generators = [seeding.np_random(seed)[0] for seed in seeds]
        self.rows = np.arange(len(seeds))

    def uniform(self, low: Any, high: Any, size: tuple[int, ...]) -> np.ndarray:
        """Draws of shape `size`, whose last dimension is that of the rows."""
        drawn = np.empty(size)
        for column, row in enumerate(self.rows):
            drawn[..., column] = self._generators[row].uniform(low, high, size[:-1])
        return drawn
