"""One Gymnasium environment as a `dm_env.Environment`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import dm_env
import gymnasium
import numpy as np

from . import spaces, specs
from .adapter import Adapter
from .errors import EnvironmentFault, InvalidOptionError
from .rendering import render_image
from .seeding import check_seed

_FIRST, _MID, _LAST = dm_env.StepType
_NORMALIZERS = (gymnasium.wrappers.NormalizeObservation, gymnasium.wrappers.NormalizeReward)
_ZERO, _ONE = np.float32(0.0), np.float32(1.0)


class GymnasiumEnvironment(Adapter):
    """A Gymnasium environment behind the interface, the types and the conventions of dm_env.

    A terminated episode ends with a discount of 0, a truncated one with a discount of 1. A step
    after the last one starts the next episode and ignores its action. Rewards and discounts are
    float32 scalars, observations of 64 bits are narrowed to 32, discrete values count from 0.

    The seed is used once, for the first reset: it seeds the environment, whose later episodes go on
    with the same stream, and its spaces.
    """

    def __init__(
        self,
        environment: gymnasium.Env,
        *,
        seed: int,
        actions: spaces.ActionMode = "strict",
        reward_clip: float | None = None,
        max_episode_steps: int | None = None,
        name: str | None = None,
    ) -> None:
        """Wraps `environment`, which nothing else may step from now on.

        Args:
          environment: not yet reset, or its state does not matter.
          seed: at least 0.
          actions: what becomes of actions in a Box (see `spaces.ActionMode`).
          reward_clip: rewards are clipped to +- this; None leaves them as they are.
          max_episode_steps: episodes are truncated after this many steps, exactly as
            `gymnasium.wrappers.TimeLimit` does; None: only where the environment does.
          name: what errors call the environment; its id by default.

        Raises:
          InvalidOptionError: if an argument has a value that it cannot have.
          UnsupportedSpaceError: if a space has no counterpart among the specs.
        """
        if max_episode_steps is not None and max_episode_steps < 1:
            raise InvalidOptionError(
                f"max_episode_steps must be at least 1 or None, got {max_episode_steps}"
            )
        registered = environment.spec.id if environment.spec is not None else None
        name = name or registered or type(environment.unwrapped).__name__
        self._seed: int | None = check_seed(seed)
        try:
            observation_spec = spaces.observation_spec(environment.observation_space)
            action_spec = spaces.action_spec(environment.action_space, actions)
            write = spaces.action_writer(environment.action_space, actions)
        except EnvironmentFault as fault:
            raise type(fault)(f"{name}: {fault}") from None
        super().__init__(environment, name, reward_clip, observation_spec, action_spec, write)
        self._read = spaces.observation_reader(environment.observation_space)
        self.remarks = tuple(_remarks(environment, name))
        self.max_episode_steps = max_episode_steps
        self._limit = float("inf") if max_episode_steps is None else max_episode_steps
        self._step = environment.step
        self._steps = 0
        self._episodes = 0
        self._over = True
        environment.action_space.seed(seed)
        environment.observation_space.seed(seed)

    @property
    def unwrapped(self) -> gymnasium.Env:
        """The Gymnasium environment that was wrapped."""
        return self._environment

    def reset(self) -> dm_env.TimeStep:
        """Starts an episode; the first one with the seed."""
        observation, _ = self._environment.reset(seed=self._seed)
        self._seed = None
        self._steps = 0
        self._episodes += 1
        self._over = False
        if self._episodes == 1:
            specs.require_real(observation, self._name)
        observation = self._read(observation)
        if self._episodes == 1:
            self._check_observation(observation)
        return dm_env.TimeStep(_FIRST, None, None, observation)

    def step(self, action: Any) -> dm_env.TimeStep:
        """Takes one step, or starts an episode after the last step of one.

        Raises:
          InvalidActionError: if the action does not fit the action spec.
          InvalidRewardError: if the environment returned a reward that is not finite.
        """
        if self._over:
            return self.reset()
        observation, given, terminated, truncated, info = self._step(self._take(action))
        self._steps += 1
        reward = self._give(float(given))
        if terminated:
            kind, discount = _LAST, _ZERO
            self._over = True
        elif truncated or self._steps >= self._limit:
            kind, discount = _LAST, _ONE
            self._over = True
        else:
            kind, discount = _MID, _ONE
        if self._over:
            self.episode_info = _numbers(info)
        # Not TimeStep(...): its generated __new__ is a Python function, twice the time of this.
        return tuple.__new__(dm_env.TimeStep, (kind, reward, discount, self._read(observation)))

    @property
    def render_fps(self) -> float | None:
        """Steps a second at which it is to be watched; None: it does not say."""
        return self._environment.metadata.get("render_fps")

    def render_frame(self) -> np.ndarray:
        """The present state as an image, uint8 [height, width, 3].

        Raises:
          InvalidOptionError: if the environment was made without `render_mode="rgb_array"`.
          RenderError: if drawing fails, mostly because there is nothing to draw with.
        """
        if self._environment.render_mode != "rgb_array":
            raise InvalidOptionError(
                f"{self._name}: no image to render; make the environment with "
                "render_mode='rgb_array'"
            )
        return render_image(self._environment.render, self._name)

    def _moment(self) -> str:
        return f" at step {self._steps} of episode {self._episodes}"

    def _check_observation(self, observation: specs.Nest) -> None:
        """Once: not every environment keeps to the shapes that its space declares."""
        specs.check_shapes(observation, self._spec.observations, self._name)


def _numbers(info: Mapping[str, Any]) -> dict[str, float]:
    """Returns what is one finite number, or true or false, in what came with a step."""
    found = {}
    for name, value in info.items():
        if isinstance(value, bool | int | float | np.generic | np.ndarray) and np.ndim(value) == 0:
            kind = np.asarray(value).dtype.kind
            if kind in "biuf" and np.isfinite(value):
                found[str(name)] = float(value)
    return found


def _remarks(environment: gymnasium.Env, name: str) -> Iterator[str]:
    """Finds wrappers that learn statistics where no learner sees them."""
    while isinstance(environment, gymnasium.Wrapper):
        if isinstance(environment, _NORMALIZERS):
            yield (
                f"{name}: the statistics of gymnasium's {type(environment).__name__} are neither "
                "shared with other environments and evaluations nor saved; leave it out and train "
                "`normalized+AGENT`, whose statistics of observations are the learner's"
            )
        environment = environment.env
