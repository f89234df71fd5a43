"""Environments of our own that show only a part of their state; `registry` has their ids."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium.envs.classic_control import CartPoleEnv, PendulumEnv


class MaskedCartPole(CartPoleEnv):
    """CartPole without its velocities: the cart's position and the pole's angle, float32 [2].

    All else is that of CartPole-v1. One observation does not say how to act, two in a row do: the
    smallest task that tells an agent with a memory from one without (Wierstra et al., 2007,
    https://doi.org/10.1007/978-3-540-74690-4_71, section 4).
    """

    def __init__(self, render_mode: str | None = None) -> None:
        super().__init__(render_mode=render_mode)
        space: Any = self.observation_space
        self.observation_space = gymnasium.spaces.Box(space.low[::2], space.high[::2], (2,))

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        observation, info = super().reset(seed=seed, options=options)
        return observation[::2], info

    def step(self, action: Any) -> tuple[np.ndarray, Any, bool, bool, dict[str, Any]]:
        observation, *rest = super().step(action)
        return observation[::2], *rest


class MaskedPendulum(PendulumEnv):
    """Pendulum without its velocity: cosine and sine of the angle, float32 [2].

    All else is that of Pendulum-v1. An agent without a memory cannot tell a swing up from a fall.
    """

    def __init__(self, render_mode: str | None = None, g: float = 10.0) -> None:
        super().__init__(render_mode=render_mode, g=g)
        self.observation_space = gymnasium.spaces.Box(-1.0, 1.0, (2,), np.float32)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        observation, info = super().reset(seed=seed, options=options)
        return observation[:2], info

    def step(self, u: Any) -> tuple[np.ndarray, Any, bool, bool, dict[str, Any]]:
        observation, *rest = super().step(u)
        return observation[:2], *rest
