"""Masks of legal actions: an entry of the observation, of which all else is what networks see.

An environment whose observations are a dict with the entry `KEY` masks its actions: 1 where a
value of the one discrete choice is legal and 0 where it is not. Of several choices at once
(MultiDiscrete) the values of one stand behind those of the other. Where nothing is legal, as behind
the end of an episode, a mask says nothing: whoever reads it takes every action for legal.

Letters: N environments in a vector, A values of a discrete action, or of all choices together.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from dm_env import StepType, specs

from .errors import EnvironmentFault, InvalidObservationError, UnsupportedSpaceError

Nest = Any

KEY = "action_mask"
"""Of the mask: in a dict of observations, and in the `info` of Gymnasium's environments."""
OBSERVATION = "observation"
"""Of all else, where an environment gives its mask beside the observation."""


def find(nest: Nest) -> Any:
    """Returns the mask of an observation, or its spec in that of the observation; None: none."""
    return nest[KEY] if isinstance(nest, Mapping) and KEY in nest else None


def visible(nest: Nest) -> Nest:
    """Returns what networks see of an observation, or the spec of that: all but the mask.

    Of a mask and one other entry that is the entry, so that an image stays an image.
    """
    if find(nest) is None:
        return nest
    others = {key: value for key, value in nest.items() if key != KEY}
    return next(iter(others.values())) if len(others) == 1 else others


def with_visible(nest: Nest, value: Nest) -> Nest:
    """Returns an observation, or its spec, with another value of what `visible` gives of it."""
    if find(nest) is None:
        return value
    others = [key for key in nest if key != KEY]
    return {**nest, **({others[0]: value} if len(others) == 1 else value)}


def num_values(actions: specs.BoundedArray) -> tuple[int, ...]:
    """Returns how many values each of the choices of an array has; a discrete action is one."""
    low, high = np.asarray(actions.minimum, np.int64), np.asarray(actions.maximum, np.int64)
    return tuple(np.broadcast_to(high - low + 1, actions.shape).ravel().tolist())


def make_spec(num_actions: int) -> specs.BoundedArray:
    """Returns the spec of a mask of A actions, bool [A]."""
    return specs.BoundedArray((num_actions,), bool, False, True, KEY)


def add_to_spec(observations: Nest, num_actions: int) -> Nest:
    """Returns the spec of observations beside which there is a mask of A actions."""
    return {OBSERVATION: observations, KEY: make_spec(num_actions)}


def check_spec(observations: Nest, actions: Nest) -> None:
    """Checks that a mask, where there is one, is of the actions.

    Raises:
      UnsupportedSpaceError: if it masks anything but choices, or stands within another entry of
        the observation.
    """
    mask = find(observations)
    if mask is None:
        if _holds_key(observations):
            raise UnsupportedSpaceError(
                f"{KEY} stands within another entry of the observation; a mask of legal actions "
                "is an entry of the outermost dict"
            )
        return
    check_actions(actions)
    size = sum(num_values(actions))
    if not isinstance(mask, specs.Array) or mask.shape != (size,):
        found = f"of shape {mask.shape}" if isinstance(mask, specs.Array) else "a nest"
        raise UnsupportedSpaceError(
            f"{KEY} is {found}; a mask of {size} legal actions has the shape ({size},)"
        )
    if len(observations) == 1:
        raise UnsupportedSpaceError(f"the observation is nothing but an {KEY}: add what is seen")


def check_actions(actions: Nest) -> None:
    """Raises UnsupportedSpaceError if actions are of a kind that cannot be masked."""
    if not (isinstance(actions, specs.BoundedArray) and actions.dtype.kind in "iub"):
        kind = f"{actions.dtype}{list(actions.shape)}" if isinstance(actions, specs.Array) else ""
        raise UnsupportedSpaceError(
            f"{KEY} masks actions that are {kind or 'a nest'}; only choices can be masked: leave "
            f"{KEY} out of observations and info, or make the actions Discrete or MultiDiscrete"
        )


def split(mask: np.ndarray, actions: specs.BoundedArray) -> list[np.ndarray]:
    """Returns the parts [...] of a mask [..., A], one for each choice."""
    return np.split(mask, np.cumsum(num_values(actions))[:-1], axis=-1)


def allowed(mask: np.ndarray, actions: specs.BoundedArray, taken: np.ndarray) -> np.ndarray:
    """Returns whether every choice of the actions is legal, bool [N].

    Args:
      mask: [N, A].
      actions: spec of one.
      taken: [N, *shape], within their bounds.
    """
    chosen = np.asarray(taken, np.int64) - np.asarray(actions.minimum, np.int64)
    chosen = chosen.reshape(len(mask), len(num_values(actions)), 1)
    each = zip(split(np.asarray(mask) != 0, actions), np.moveaxis(chosen, 1, 0), strict=True)
    return np.all([np.take_along_axis(*one, axis=1)[:, 0] for one in each], axis=0)


def draw(mask: np.ndarray, actions: specs.BoundedArray, random: np.random.Generator) -> np.ndarray:
    """Draws actions [N, *shape] uniformly from those that masks [N, A] allow."""
    parts = split(np.where(mask, random.random(mask.shape), -1.0), actions)
    chosen = np.stack([part.argmax(axis=-1) for part in parts], axis=-1)
    chosen = chosen.reshape(len(mask), *actions.shape) + np.asarray(actions.minimum)
    return chosen.astype(actions.dtype)


def check(
    mask: np.ndarray,
    kinds: np.ndarray,
    actions: specs.BoundedArray,
    who: Callable[[int], str],
) -> None:
    """Checks the masks of a vector of environments.

    Args:
      mask: [N, A].
      kinds: step types, [N]; at LAST no action is taken.
      actions: spec of one.
      who: `index -> text`, for errors.

    Raises:
      InvalidObservationError: if a mask holds another number than 0 and 1, or allows no value of a
        choice in the midst of an episode.
    """
    if mask.dtype != bool:
        wrong = (mask != 0) & (mask != 1)
        if wrong.any():
            row, action = np.argwhere(wrong)[0]
            raise InvalidObservationError(
                f"{who(int(row))}: {KEY} holds {mask[row, action]}; it is 1 where an action is "
                "legal and 0 where it is not"
            )
    possible = np.all([part.any(axis=1) for part in split(mask, actions)], axis=0)
    empty = ~possible & (kinds != StepType.LAST)
    if empty.any():
        raise InvalidObservationError(
            f"{who(int(empty.argmax()))}: {KEY} allows no action; an episode in which nothing can "
            "be done must end"
        )


def read(info: Mapping[str, Any], actions: specs.BoundedArray, over: bool, name: str) -> np.ndarray:
    """Returns the mask in an `info` of Gymnasium's, bool [A].

    Args:
      info: of a step or a reset, or what stands for one. Of several choices its mask may be a tuple
        of one array each, as Gymnasium's spaces sample by.
      actions: spec of one.
      over: True at the end of an episode, where it may be missing.
      name: what errors call the environment.

    Raises:
      EnvironmentFault: if it is missing, or of another shape or type.
      InvalidObservationError: if it holds another number than 0 and 1.
    """
    given, sizes = info.get(KEY), num_values(actions)
    num_actions = sum(sizes)
    if given is None:
        if over:
            return np.ones(num_actions, bool)
        raise EnvironmentFault(
            f"{name}: info has no {KEY}, which that of the first reset had; give it at every step"
        )
    if isinstance(given, tuple | list) and tuple(map(np.size, given)) == sizes and actions.shape:
        given = np.concatenate([np.atleast_1d(part) for part in given])
    mask = np.asarray(given)
    if mask.shape != (num_actions,) or mask.dtype.kind not in "biuf":
        raise EnvironmentFault(
            f"{name}: {KEY} is {mask.dtype}{list(mask.shape)}; a mask of {num_actions} "
            f"legal actions has the shape ({num_actions},)"
        )
    if mask.dtype != bool:
        check(mask[np.newaxis], np.array([StepType.LAST]), actions, lambda _: name)
    return mask.astype(bool)


def _holds_key(nest: Nest) -> bool:
    """True if there is a mask anywhere in a nest."""
    if isinstance(nest, Mapping):
        return KEY in nest or any(map(_holds_key, nest.values()))
    return isinstance(nest, tuple | list) and any(map(_holds_key, nest))
