"""Masks of legal actions: an entry of the observation, of which all else is what networks see.

An environment whose observations are a dict with the entry `KEY` masks its actions: 1 where an
action of the one discrete choice is legal and 0 where it is not. Where nothing is legal, as behind
the end of an episode, a mask says nothing: whoever reads it takes every action for legal.

Letters: N environments in a vector, A actions.
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


def make_spec(num_actions: int) -> specs.BoundedArray:
    """Returns the spec of a mask of A actions, bool [A]."""
    return specs.BoundedArray((num_actions,), bool, False, True, KEY)


def add_to_spec(observations: Nest, num_actions: int) -> Nest:
    """Returns the spec of observations beside which there is a mask of A actions."""
    return {OBSERVATION: observations, KEY: make_spec(num_actions)}


def check_spec(observations: Nest, actions: Nest) -> None:
    """Checks that a mask, where there is one, is of the actions.

    Raises:
      UnsupportedSpaceError: if it masks anything but the values of one discrete choice, or stands
        within another entry of the observation.
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
    size = int(actions.num_values)
    if not isinstance(mask, specs.Array) or mask.shape != (size,):
        found = f"of shape {mask.shape}" if isinstance(mask, specs.Array) else "a nest"
        raise UnsupportedSpaceError(
            f"{KEY} is {found}; a mask of {size} legal actions has the shape ({size},)"
        )
    if len(observations) == 1:
        raise UnsupportedSpaceError(f"the observation is nothing but an {KEY}: add what is seen")


def check_actions(actions: Nest) -> None:
    """Raises UnsupportedSpaceError if actions are of a kind that cannot be masked."""
    if not isinstance(actions, specs.DiscreteArray):
        kind = f"{actions.dtype}{list(actions.shape)}" if isinstance(actions, specs.Array) else ""
        raise UnsupportedSpaceError(
            f"{KEY} masks actions that are {kind or 'a nest'}; only those of one discrete choice "
            f"can be masked: leave {KEY} out of observations and info, or make the actions Discrete"
        )


def check(mask: np.ndarray, kinds: np.ndarray, who: Callable[[int], str]) -> None:
    """Checks the masks of a vector of environments.

    Args:
      mask: [N, A].
      kinds: step types, [N]; at LAST no action is taken.
      who: `index -> text`, for errors.

    Raises:
      InvalidObservationError: if a mask holds another number than 0 and 1, or allows nothing in
        the midst of an episode.
    """
    if mask.dtype != bool:
        wrong = (mask != 0) & (mask != 1)
        if wrong.any():
            row, action = np.argwhere(wrong)[0]
            raise InvalidObservationError(
                f"{who(int(row))}: {KEY} holds {mask[row, action]}; it is 1 where an action is "
                "legal and 0 where it is not"
            )
    empty = ~mask.any(axis=1) & (kinds != StepType.LAST)
    if empty.any():
        raise InvalidObservationError(
            f"{who(int(empty.argmax()))}: {KEY} allows no action; an episode in which nothing can "
            "be done must end"
        )


def read(info: Mapping[str, Any], num_actions: int, over: bool, name: str) -> np.ndarray:
    """Returns the mask in an `info` of Gymnasium's, bool [A].

    Args:
      info: of a step or a reset, or what stands for one.
      num_actions: A.
      over: True at the end of an episode, where it may be missing.
      name: what errors call the environment.

    Raises:
      EnvironmentFault: if it is missing, or of another shape or type.
      InvalidObservationError: if it holds another number than 0 and 1.
    """
    given = info.get(KEY)
    if given is None:
        if over:
            return np.ones(num_actions, bool)
        raise EnvironmentFault(
            f"{name}: info has no {KEY}, which that of the first reset had; give it at every step"
        )
    mask = np.asarray(given)
    if mask.shape != (num_actions,) or mask.dtype.kind not in "biuf":
        raise EnvironmentFault(
            f"{name}: {KEY} is {mask.dtype}{list(mask.shape)}; a mask of {num_actions} "
            f"legal actions has the shape ({num_actions},)"
        )
    if mask.dtype != bool:
        check(mask[np.newaxis], np.array([StepType.LAST]), lambda _: name)
    return mask.astype(bool)


def _holds_key(nest: Nest) -> bool:
    """True if there is a mask anywhere in a nest."""
    if isinstance(nest, Mapping):
        return KEY in nest or any(map(_holds_key, nest.values()))
    return isinstance(nest, tuple | list) and any(map(_holds_key, nest))
