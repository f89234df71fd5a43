"""Any `dm_env.Environment` with the types and the conventions of this package."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import dm_env
import gymnasium
import numpy as np
from gymnasium import spaces as gymnasium_spaces

from . import action_masks, spaces, specs
from .adapter import Adapter, show
from .errors import EnvironmentFault, InvalidOptionError, UnsupportedSpaceError
from .rendering import render_image


class Conform(Adapter):
    """Narrows what an environment gives to 32 bits and checks the actions that it takes.

    Rewards and discounts become float32 scalars, whatever their spec was. Actions in a Box are
    refused, clipped or rescaled as `GymnasiumEnvironment` does.
    """

    def __init__(
        self,
        environment: dm_env.Environment,
        *,
        name: str,
        actions: spaces.ActionMode = "strict",
        reward_clip: float | None = None,
        render: Callable[[], np.ndarray] | None = None,
    ) -> None:
        """Wraps an environment that has its seed already.

        Args:
          environment: nothing else may step it from now on.
          name: what errors call it.
          actions: what becomes of actions in a Box (see `spaces.ActionMode`).
          reward_clip: rewards are clipped to +- this; None leaves them as they are.
          render: makes an image, uint8 [height, width, 3], where there is one to make.

        Raises:
          InvalidOptionError: if an argument has a value that it cannot have.
          UnsupportedSpaceError: if there is a spec of strings.
        """
        # By way of spaces, so that there is one reader and one writer for every kind of array.
        if not isinstance(environment, dm_env.Environment):
            is_gymnasium = isinstance(environment, gymnasium.Env)
            hint = "; GymnasiumEnvironment takes those of Gymnasium" if is_gymnasium else ""
            raise InvalidOptionError(
                f"Conform takes a dm_env.Environment, got {show(environment)}{hint}"
            )
        given = environment.observation_spec()
        specs.require_real([given, environment.action_spec()], name)
        observations = _space(given, name)
        taken = _space(environment.action_spec(), name)
        observation_spec = spaces.observation_spec(observations)
        if isinstance(action_masks.visible(given), specs.StackedArray):
            stacked = action_masks.visible(given)
            observation_spec = action_masks.with_visible(observation_spec, stacked)
        action_spec = spaces.action_spec(taken, actions)
        write = spaces.action_writer(taken, actions)
        super().__init__(environment, name, reward_clip, observation_spec, action_spec, write)
        self._render = render
        self._read = spaces.observation_reader(observations)
        self._checked = False

    @property
    def unwrapped(self) -> dm_env.Environment:
        """The environment that was wrapped."""
        return self._environment

    def reset(self) -> dm_env.TimeStep:
        timestep: Any = self._environment.reset()
        if not self._checked:  # Once: what it gives does not change from episode to episode.
            fits = isinstance(timestep, tuple) and len(timestep) == 4
            if not fits:
                raise EnvironmentFault(
                    f"{self._name}: reset gave {show(timestep)}; it must be a dm_env.TimeStep"
                )
            specs.require_real(timestep.observation, self._name)
            self._checked = True
        return self._convert(timestep)

    def step(self, action: Any) -> dm_env.TimeStep:
        """Takes one step, or starts an episode after the last step of one.

        Raises:
          InvalidActionError: if the action does not fit the action spec.
          InvalidRewardError: if the environment returned a reward that is not finite.
        """
        return self._convert(self._environment.step(self._take(action)))

    def _convert(self, timestep: dm_env.TimeStep) -> dm_env.TimeStep:
        kind, reward, discount, observation = timestep
        observation = self._read(observation)
        if kind is dm_env.StepType.FIRST:
            return dm_env.TimeStep(kind, None, None, observation)
        return dm_env.TimeStep(kind, self._give(reward), np.float32(discount), observation)

    @property
    def render_fps(self) -> float | None:
        """Steps a second at which it is to be watched, by the time that one takes where it says."""
        seconds = getattr(self._environment, "control_timestep", None)
        return 1.0 / seconds() if callable(seconds) else None

    def render_frame(self) -> np.ndarray:
        """The present state as an image, uint8 [height, width, 3].

        Raises:
          InvalidOptionError: if there is no image to make.
          RenderError: if drawing fails, mostly because there is nothing to draw with.
        """
        if self._render is None:
            raise InvalidOptionError(f"{self._name}: this environment renders no images")
        return render_image(self._render, self._name)


def _space(spec: specs.Nest, name: str) -> gymnasium_spaces.Space:
    """The space of the values that fit a spec."""
    if isinstance(spec, dict):
        return gymnasium_spaces.Dict({key: _space(part, name) for key, part in spec.items()})
    if isinstance(spec, tuple | list):
        return gymnasium_spaces.Tuple([_space(part, name) for part in spec])
    if isinstance(spec, specs.DiscreteArray):
        return gymnasium_spaces.Discrete(spec.num_values)
    if spec.dtype.kind not in "fiub":
        raise UnsupportedSpaceError(f"{name}: {spec} is not an array of numbers")
    low: Any = -np.inf
    high: Any = np.inf
    if isinstance(spec, specs.BoundedArray):
        low, high = spec.minimum, spec.maximum
    elif spec.dtype.kind in "iu":
        low, high = np.iinfo(spec.dtype).min, np.iinfo(spec.dtype).max
    elif spec.dtype.kind == "b":
        low, high = False, True
    low, high = (np.full(spec.shape, bound, spec.dtype) for bound in (low, high))
    return gymnasium_spaces.Box(low, high, spec.shape, spec.dtype)
