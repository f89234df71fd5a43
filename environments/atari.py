"""Atari games with the standard preprocessing.

Mnih et al. 2015, "Human-level control through deep reinforcement learning"
(https://doi.org/10.1038/nature14236): up to 30 no-ops at the start, every action repeated for four
frames, the last two of them pooled, grey, 84x84, the last four observations stacked. Sticky
actions and episode lengths are those of the id ("ALE/Pong-v5" follows Machado et al. 2018,
https://arxiv.org/abs/1709.06009).
"""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium.wrappers import AtariPreprocessing

FRAME_SKIP = 4
NOOP_MAX = 30
SCREEN_SIZE = 84
STACK = 4

# What the game itself must be made with.
ARGUMENTS: dict[str, Any] = {"frameskip": 1, "obs_type": "ram"}


def preprocess(game: gymnasium.Env, *, episodic_life: bool) -> gymnasium.Env:
    """A game whose frames are not skipped yet, with everything but the stack of frames.

    Args:
      game: an `ale_py` environment made with `ARGUMENTS`.
      episodic_life: whether losing a life ends an episode (see `EpisodicLife`).

    Returns:
      An environment whose observation is uint8 [84, 84].
    """
    environment: gymnasium.Env = AtariPreprocessing(
        Unseen(game),
        noop_max=NOOP_MAX,
        frame_skip=FRAME_SKIP,
        screen_size=SCREEN_SIZE,
        terminal_on_life_loss=False,
        grayscale_obs=True,
        scale_obs=False,
    )
    return EpisodicLife(environment) if episodic_life else environment


class Unseen(gymnasium.Wrapper):
    """A game that returns its memory and says that it returns its screen.

    `AtariPreprocessing` reads the last two screens of four itself and looks at no observation: that
    the game copies 128 bytes instead of a coloured screen every frame saves a fifth of the time.
    """

    def __init__(self, game: gymnasium.Env) -> None:
        super().__init__(game)
        screen = game.unwrapped.ale.getScreenDims()  # type: ignore[attr-defined]
        self.observation_space = gymnasium.spaces.Box(0, 255, screen, np.uint8)


class EpisodicLife(gymnasium.Wrapper):
    """Losing a life terminates an episode; the game goes on in the next one until it is over.

    `AtariPreprocessing(terminal_on_life_loss=True)` starts the game anew at every lost life, so
    that an agent never trains on what comes after its first one.
    """

    def __init__(self, environment: gymnasium.Env) -> None:
        super().__init__(environment)
        self._lives = 0
        self._game_over = True

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        observation, reward, terminated, truncated, info = self.env.step(action)
        self._game_over = terminated or truncated
        # Some games show 0 lives for a few frames before they are over: those are not a loss yet.
        lost = 0 < info["lives"] < self._lives
        self._lives = info["lives"]
        return observation, reward, terminated or lost, truncated, info

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        if seed is None and not self._game_over:
            # A no-op leads from the lost life to the first observation of the next.
            observation, _, terminated, truncated, info = self.env.step(0)
            self._game_over = terminated or truncated
        if seed is not None or self._game_over:
            observation, info = self.env.reset(seed=seed, options=options)
            self._game_over = False
        self._lives = info["lives"]
        return observation, info
