"""The base of all adapters: name, specs, actions and rewards."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import dm_env
import numpy as np

from . import action_masks, specs
from .errors import EnvironmentFault, InvalidOptionError, InvalidRewardError

_MAX_REWARD = float(np.finfo(np.float32).max)


def is_reward(reward: Any) -> bool:
    """True if `reward` is a finite float32 number."""
    try:
        return bool(-_MAX_REWARD <= reward <= _MAX_REWARD)  # False for NaN as well.
    except (TypeError, ValueError):  # It is no number, or several.
        return False


def check_reward_clip(clip: Any) -> None:
    """Raises InvalidOptionError where rewards cannot be clipped to +- this; None clips none."""
    if clip is not None and not (isinstance(clip, int | float) and 0 < clip <= _MAX_REWARD):
        raise InvalidOptionError(f"reward_clip must be above 0 or None, got {clip!r}")


def not_a_reward(reward: Any, moment: str = "") -> str:
    """Returns the text of an error for a reward that is not a finite float32 number."""
    said = reward if isinstance(reward, int | float | np.number) else show(reward)
    return f"reward {said}{moment}; rewards must be finite float32 numbers"


def show(value: Any) -> str:
    """A value on one line, however large it is."""
    text = " ".join(repr(value).split())
    return text if len(text) <= 80 else f"{text[:77]}..."


def numbers_of(info: Any) -> dict[str, float]:
    """Returns what is one finite number, or true or false, in what came with a step."""
    found: dict[str, float] = {}
    for name, value in info.items() if isinstance(info, Mapping) else ():
        if isinstance(value, bool | int | float | np.generic | np.ndarray) and np.ndim(value) == 0:
            kind = np.asarray(value).dtype.kind
            if kind in "biuf" and np.isfinite(value):
                found[str(name)] = float(value)
    return found


class Adapter(specs.Specified, dm_env.Environment):
    """An environment behind the interface, the types and the conventions of this package."""

    remarks: tuple[str, ...] = ()
    """Remarks for users, a sentence each."""
    episode_info: Mapping[str, float] = {}
    episode_text: str | None = None
    """Numbers that it gave beside the last step of the newest episode that has ended."""
    max_episode_steps: int | None = None
    """Steps after which episodes are truncated; None: no limit is known."""

    def __init__(
        self,
        environment: Any,
        name: str,
        reward_clip: float | None,
        observation_spec: specs.Nest,
        action_spec: specs.Nest,
        write: Callable[[Any], Any],
    ) -> None:
        """Keeps the environment and its specs.

        Args:
          environment: the one that is adapted.
          name: what errors call it.
          reward_clip: rewards are clipped to +- this; None leaves them as they are.
          observation_spec: of what agents see.
          action_spec: of what agents do.
          write: makes an action of the environment from one of an agent.

        Raises:
          InvalidOptionError: if `reward_clip` is no finite number above 0.
          UnsupportedSpaceError: if observations hold a mask of actions that cannot be masked.
        """
        check_reward_clip(reward_clip)
        try:
            action_masks.check_spec(observation_spec, action_spec)
        except EnvironmentFault as fault:
            raise type(fault)(f"{name}: {fault}") from None
        self._environment = environment
        self._name = name
        self.reward_clip = reward_clip
        self._write = write
        self._spec = specs.EnvironmentSpec(
            observation_spec, action_spec, specs.reward_spec(reward_clip), specs.discount_spec()
        )

    def close(self) -> None:
        self._environment.close()

    def _take(self, action: Any) -> Any:
        """Returns the environment's action for an agent's."""
        try:
            return self._write(action)
        except EnvironmentFault as fault:
            raise type(fault)(f"{self._name}: {fault}") from None

    def _give(self, reward: Any) -> np.float32:
        """Returns the agent's reward for the environment's."""
        if not is_reward(reward):
            raise InvalidRewardError(f"{self._name}: {not_a_reward(reward, self._moment())}")
        clip = self.reward_clip
        return np.float32(reward if clip is None else min(max(reward, -clip), clip))

    def _moment(self) -> str:
        """The present step as text, for errors; here empty."""
        return ""
