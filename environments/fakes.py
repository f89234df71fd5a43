"""Environments made up from specs, for tests and for measurements.

Their observations and rewards are random numbers that fit the specs, their episodes have given
lengths, and they refuse actions that do not fit. `make("fake/NAME", seed=...)` makes those of
`FAKES` as it makes real ones.
"""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable, Sequence
from typing import Any

import dm_env
import numpy as np
import tree

from . import action_masks, specs
from .errors import InvalidActionError, InvalidOptionError
from .seeding import check_seed
from .stacking import StackFrames

_FIRST, _MID, _LAST = dm_env.StepType


class Fake(specs.Specified, dm_env.Environment):
    """Random observations and rewards that fit a spec, in episodes of given lengths.

    Everything follows from the seed and the number of steps taken, nothing from the actions.
    Where the spec has a mask of legal actions, one is drawn that allows at least one, and actions
    that it does not allow are refused.
    """

    def __init__(
        self,
        spec: specs.EnvironmentSpec,
        *,
        seed: int,
        episode_lengths: Sequence[int] = (10,),
        truncated: Sequence[bool] = (False,),
        step_ms: float = 0.0,
    ) -> None:
        """Makes a fake.

        Args:
          spec: what the environment gives and takes.
          seed: at least 0.
          episode_lengths: steps of the episodes, in turn and then again from the first. An
            episode of n steps has n + 1 time steps, FIRST and LAST among them.
          truncated: which episodes are truncated (discount 1 at LAST) instead of terminated, in
            turn and then again from the first.
          step_ms: how many milliseconds a step and a reset sleep, as an environment does that
            waits for a simulator in another process.

        Raises:
          InvalidOptionError: if a length is below 1, a sequence is empty, or `step_ms` negative.
        """
        if not episode_lengths or min(episode_lengths) < 1 or not truncated or step_ms < 0:
            raise InvalidOptionError(
                "a fake needs episode_lengths of at least 1, truncated not empty and step_ms not "
                f"negative, got {episode_lengths}, {truncated} and {step_ms}"
            )
        self._spec = spec
        self._random = np.random.default_rng(check_seed(seed))
        self._lengths = tuple(episode_lengths)
        self._truncated = tuple(truncated)
        self._sleep = step_ms / 1000
        self._episode = -1
        self._left = 0
        self._mask: np.ndarray | None = None

    def reset(self) -> dm_env.TimeStep:
        self._wait()
        self._episode += 1
        self._left = self._lengths[self._episode % len(self._lengths)]
        return dm_env.restart(self._observe())

    def step(self, action: Any) -> dm_env.TimeStep:
        if self._left == 0:
            return self.reset()
        action = _as_arrays(action, self._spec.actions)
        _check_legal(action, self._mask, self._spec.actions)
        self._wait()
        self._left -= 1
        observation = self._observe()
        reward = self._draw(self._spec.rewards)
        if self._left > 0:
            return dm_env.TimeStep(_MID, reward, np.float32(1.0), observation)
        truncated = self._truncated[self._episode % len(self._truncated)]
        return dm_env.TimeStep(_LAST, reward, np.float32(truncated), observation)

    def _observe(self) -> specs.Nest:
        observation = self._draw(self._spec.observations)
        self._mask = action_masks.find(observation)
        if self._mask is not None:
            for part in action_masks.split(self._mask, self._spec.actions):
                part[self._random.integers(part.size)] = 1
        return observation

    def _wait(self) -> None:
        if self._sleep:
            time.sleep(self._sleep)

    def _draw(self, spec: specs.Nest) -> specs.Nest:
        return tree.map_structure(self._draw_leaf, spec)

    def _draw_leaf(self, spec: specs.Array) -> np.ndarray:
        bounded = isinstance(spec, specs.BoundedArray)
        if spec.dtype == bool:
            drawn = self._random.integers(0, 1, spec.shape, endpoint=True)
        elif spec.dtype.kind in "iu":
            info = np.iinfo(spec.dtype)
            low, high = (spec.minimum, spec.maximum) if bounded else (info.min, info.max)
            drawn = self._random.integers(low, high, spec.shape, np.int64, endpoint=True)
        else:
            drawn = self._random.standard_normal(spec.shape, np.float32)
            if bounded:
                low, high = (np.broadcast_to(b, spec.shape) for b in (spec.minimum, spec.maximum))
                finite = np.isfinite(low) & np.isfinite(high)
                share = self._random.random(spec.shape, np.float32)
                within = np.where(finite, low, 0) + np.where(finite, high - low, 0) * share
                drawn = np.clip(np.where(finite, within, drawn), low, high)
        return np.asarray(drawn, spec.dtype)


class Match(specs.Specified, dm_env.Environment):
    """A task that every agent must learn: say the number that you are shown.

    The observation is a one-hot float32 [num_values]. With discrete actions the reward is 1 for
    the number shown and 0 otherwise; with continuous ones, float32 [1] in [-1, 1], it is 1 less
    the distance to that number's place among `num_values` evenly spaced ones. With structured ones,
    a dict of such a choice and a tuple of such a place and the number's binary digits, it is the
    mean over the three, of the digits the share that is right. The best return is `length`; the
    numbers are drawn anew at every step.

    With `masked` some of the actions are legal, the right one among them, as a mask beside the
    observation says; others are refused. At the end of an episode none is legal.
    """

    def __init__(
        self,
        *,
        seed: int,
        num_values: int = 4,
        length: int = 16,
        continuous: bool = False,
        masked: bool = False,
        structured: bool = False,
    ) -> None:
        """Makes the task.

        Raises:
          InvalidOptionError: if there are less than 2 values, `length` is below 1, or two of the
            last three arguments are true.
        """
        if continuous + masked + structured > 1:
            raise InvalidOptionError("take one of continuous, masked and structured, not several")
        if num_values < 2 or length < 1:
            raise InvalidOptionError(
                f"num_values must be at least 2 and length 1, got {num_values} and {length}"
            )
        self._random = np.random.default_rng(check_seed(seed))
        self._length = length
        self._places = np.linspace(-1, 1, num_values)
        self._is_masked = masked
        self._mask: np.ndarray | None = None
        shown: specs.Nest = specs.BoundedArray((num_values,), np.float32, 0.0, 1.0, "observation")
        choice = specs.DiscreteArray(num_values, np.int32, name="action")
        place = specs.BoundedArray((1,), np.float32, -1.0, 1.0, name="action")
        num_digits = (num_values - 1).bit_length()
        self._digits = np.arange(num_values)[:, None] >> np.arange(num_digits) & 1
        digits = specs.BoundedArray((num_digits,), np.int8, 0, 1, name="digits")
        actions = place if continuous else choice
        if structured:
            actions = {"number": choice, "parts": (place, digits)}
        self._spec = _spec(
            action_masks.add_to_spec(shown, num_values) if masked else shown, actions
        )
        self._shown = 0
        self._left = 0

    def reset(self) -> dm_env.TimeStep:
        self._left = self._length
        return dm_env.restart(self._show())

    def step(self, action: Any) -> dm_env.TimeStep:
        if self._left == 0:
            return self.reset()
        self._left -= 1
        action = _as_arrays(action, self._spec.actions)
        _check_legal(action, self._mask, self._spec.actions)
        scores = tree.map_structure(self._score, self._spec.actions, action)
        reward = np.mean(tree.flatten(scores), dtype=np.float32)
        if self._left > 0:
            return dm_env.TimeStep(_MID, reward, np.float32(1.0), self._show())
        return dm_env.TimeStep(_LAST, reward, np.float32(0.0), self._show())

    def _score(self, spec: specs.Array, action: Any) -> np.floating:
        """The share of one array of an action that is right, at most 1."""
        if spec.dtype == np.float32:
            return 1 - abs(np.float32(action[0]) - self._places[self._shown])
        right = self._digits[self._shown] if spec.shape else self._shown
        return np.mean(action == right)

    def _show(self) -> specs.Nest:
        num_values = len(self._places)
        self._shown = int(self._random.integers(num_values))
        observation = np.zeros(num_values, np.float32)
        observation[self._shown] = 1.0
        if not self._is_masked:
            return observation
        self._mask = np.zeros(num_values, bool)
        if self._left > 0:
            self._mask = self._random.random(num_values) < 0.5
            self._mask[self._shown] = True
        return {action_masks.OBSERVATION: observation, action_masks.KEY: self._mask}


def _as_arrays(action: specs.Nest, actions: specs.Nest) -> specs.Nest:
    """Returns an action that fits its spec; numbers of another width pass, as with spaces."""
    if isinstance(actions, specs.Array):
        action = np.asarray(action)
    try:
        tree.assert_same_structure(action, actions, check_types=False)
    except (TypeError, ValueError):
        raise InvalidActionError(f"action must have the structure {actions}") from None
    for value, spec in zip(tree.flatten(action), tree.flatten(actions), strict=True):
        array = np.asarray(value)
        if array.dtype.kind == "f" and spec.dtype.kind in "iu":
            raise InvalidActionError(f"action must be of {spec.dtype}, got {array.dtype}")
        if np.isnan(array).any():
            raise InvalidActionError(f"action must be numbers, got {array.tolist()}")
        try:
            spec.validate(array.astype(spec.dtype))
        except ValueError as error:
            raise InvalidActionError(f"action: {' '.join(str(error).split())}") from None
    return tree.map_structure(np.asarray, action)


def _check_legal(action: Any, mask: np.ndarray | None, actions: specs.Nest) -> None:
    """Raises InvalidActionError for a choice that a mask does not allow."""
    if mask is None or action_masks.allowed(mask[None], actions, action[None]).all():
        return
    legal = [np.flatnonzero(part).tolist() for part in action_masks.split(mask, actions)]
    raise InvalidActionError(
        f"action {action.tolist()} is illegal; legal are {legal if actions.shape else legal[0]}"
    )


def from_spec(spec: specs.EnvironmentSpec, *, seed: int, **options: Any) -> dm_env.Environment:
    """A fake of any environment: `from_spec(make_spec(environment), seed=0)`.

    Args:
      spec: where the observation is a `StackedArray`, frames are drawn and then stacked.
      seed: at least 0.
      **options: those of `Fake`.
    """
    observation = action_masks.visible(spec.observations)
    if not isinstance(observation, specs.StackedArray):
        return Fake(spec, seed=seed, **options)
    if observation.axis != -1:
        raise InvalidOptionError(f"frames are stacked along axis -1, not {observation.axis}")
    frame = action_masks.with_visible(spec.observations, observation.frame)
    frames = Fake(spec._replace(observations=frame), seed=seed, **options)
    return StackFrames(frames, observation.stack)


def discrete(
    *, seed: int, observation_size: int = 4, num_actions: int = 3, **options: Any
) -> dm_env.Environment:
    """Float32 [observation_size] in, one of `num_actions` out."""
    return from_spec(
        _spec(
            specs.Array((observation_size,), np.float32, "observation"),
            specs.DiscreteArray(num_actions, np.int32, "action"),
        ),
        seed=seed,
        **options,
    )


def continuous(
    *, seed: int, observation_size: int = 4, action_size: int = 2, **options: Any
) -> dm_env.Environment:
    """Float32 [observation_size] in, float32 [action_size] in [-1, 1] out."""
    return from_spec(
        _spec(
            specs.Array((observation_size,), np.float32, "observation"),
            specs.BoundedArray((action_size,), np.float32, -1.0, 1.0, "action"),
        ),
        seed=seed,
        **options,
    )


def image(
    *, seed: int, size: int = 84, stack: int = 4, num_actions: int = 6, **options: Any
) -> dm_env.Environment:
    """Stacked frames, uint8 [size, size, stack], in; one of `num_actions` out."""
    shape = (size, size, stack)
    return from_spec(
        _spec(
            specs.StackedArray(shape, np.uint8, 0, 255, stack, -1, "observation"),
            specs.DiscreteArray(num_actions, np.int32, "action"),
        ),
        seed=seed,
        **options,
    )


def nested(*, seed: int, single_action: bool = False, **options: Any) -> dm_env.Environment:
    """A dict of an array, a tuple and a small image in; a dict of a number and a choice out.

    With `single_action` the choice alone is the action, which agents of one discrete action drive.
    """
    observations = {
        "position": specs.Array((3,), np.float32, "position"),
        "parts": (
            specs.BoundedArray((2,), np.float32, -1.0, 1.0, "left"),
            specs.DiscreteArray(5, np.int32, "right"),
        ),
        "picture": specs.BoundedArray((8, 8, 1), np.uint8, 0, 255, "picture"),
    }
    actions = {
        "push": specs.BoundedArray((2,), np.float32, -1.0, 1.0, "push"),
        "choice": specs.DiscreteArray(3, np.int32, "choice"),
    }
    taken = actions["choice"] if single_action else actions
    return from_spec(_spec(observations, taken), seed=seed, **options)


def ragged(
    *, seed: int, episodes: int = 32, longest: int = 12, **options: Any
) -> dm_env.Environment:
    """`discrete`, with episodes of 1 to `longest` steps, a third of them truncated."""
    random = np.random.default_rng([check_seed(seed), 1])
    lengths = random.integers(1, longest, episodes, endpoint=True).tolist()
    truncated = (random.random(episodes) < 1 / 3).tolist()
    return discrete(seed=seed, episode_lengths=lengths, truncated=truncated, **options)


def _spec(observations: specs.Nest, actions: specs.Nest) -> specs.EnvironmentSpec:
    return specs.EnvironmentSpec(observations, actions, specs.reward_spec(), specs.discount_spec())


FAKES: dict[str, Callable[..., dm_env.Environment]] = {
    "continuous": continuous,
    "discrete": discrete,
    "image": image,
    "match": Match,
    "nested": nested,
    "ragged": ragged,
}


def parameters(constructor: Callable[..., dm_env.Environment]) -> dict[str, inspect.Parameter]:
    """Returns the parameters of a constructor in `FAKES`, without the seed and the spec."""
    found = dict(inspect.signature(constructor).parameters)
    if any(one.kind is one.VAR_KEYWORD for one in found.values()):
        found = {**inspect.signature(Fake).parameters, **found}
    return {
        name: one
        for name, one in found.items()
        if name not in ("seed", "spec") and one.kind is not one.VAR_KEYWORD
    }
