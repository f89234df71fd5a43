"""Observations of several agents, made equal in shape, with a one-hot of who sees them.

Agents that share their parameters need observations of one structure. Where their vectors differ in
size alone they may be padded with zeros.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from gymnasium import spaces as gymnasium_spaces

from .. import action_masks, spaces, specs
from ..adapter import show
from ..errors import InvalidOptionError, UnsupportedSpaceError

INDICATOR = "agent"
"""Of the one-hot, in observations that are dicts."""

Reader = Callable[[Any], specs.Nest]


def common(
    found: Mapping[str, gymnasium_spaces.Space], padded: bool
) -> tuple[specs.Nest, list[Reader]]:
    """Returns the spec that all agents' observations have, and their readers.

    Args:
      found: spaces by agent.
      padded: whether vectors are padded with zeros to the longest.

    Raises:
      UnsupportedSpaceError: if a space has no spec, or they differ.
      InvalidOptionError: if something else than vectors was to be padded.
    """
    if padded:
        return _padded(found)
    own = {agent: spaces.observation_spec(space) for agent, space in found.items()}
    pads = all(isinstance(space, gymnasium_spaces.Box) for space in found.values())
    hint = "pad_observations=True (--env.pad_observations true) pads vectors with zeros"
    require_equal("observations", own, found, hint if pads else "leave one kind of agent out")
    readers = [spaces.observation_reader(space) for space in found.values()]
    return next(iter(own.values())), readers


def require_equal(
    what: str,
    own: Mapping[str, specs.Nest],
    found: Mapping[str, gymnasium_spaces.Space],
    hint: str,
) -> None:
    """Raises UnsupportedSpaceError where agents differ in what they see or do, naming two."""
    first = next(iter(own))
    for agent, spec in own.items():
        if not specs.equal(spec, own[first]):
            raise UnsupportedSpaceError(
                f"agents share their parameters and need equal {what}: those of {first} are "
                f"{show(found[first])}, those of {agent} {show(found[agent])}; {hint}"
            )


def _padded(
    found: Mapping[str, gymnasium_spaces.Space],
) -> tuple[specs.Nest, list[Reader]]:
    for agent, space in found.items():
        if not isinstance(space, gymnasium_spaces.Box) or len(space.shape) != 1:
            raise InvalidOptionError(
                f"pad_observations is for vectors, and {agent} sees {show(space)}; leave it out"
            )
    boxes: list[Any] = list(found.values())
    size, dtype = max(box.shape[0] for box in boxes), np.result_type(*(box.dtype for box in boxes))
    low, high = (
        reduce([np.append(bound, np.zeros(size - len(bound))) for bound in bounds], axis=0)
        for reduce, bounds in (
            (np.min, [box.low for box in boxes]),
            (np.max, [box.high for box in boxes]),
        )
    )
    union = gymnasium_spaces.Box(low.astype(dtype), high.astype(dtype), dtype=dtype)
    spec = spaces.observation_spec(union)

    def read(observation: Any) -> np.ndarray:
        array = np.asarray(observation, spec.dtype)
        return np.append(array, np.zeros(size - len(array), spec.dtype))

    return spec, [read] * len(boxes)


def with_indicator(
    spec: specs.Nest, readers: list[Reader], name: str
) -> tuple[specs.Nest, list[Reader]]:
    """Returns a spec and readers of observations that say who sees them.

    The one-hot, float32 [agents], is joined to a vector of float32. Beside anything else it is an
    entry of a dict.

    Args:
      spec: of each agent's observations.
      readers: of each agent's observations.
      name: what errors call the environment.

    Raises:
      InvalidOptionError: if observations have an entry of that name.
    """
    count, seen = len(readers), action_masks.visible(spec)
    who = specs.BoundedArray((count,), np.float32, 0.0, 1.0, INDICATOR)
    if isinstance(seen, Mapping) and INDICATOR in seen:
        raise InvalidOptionError(
            f"{name}: observations have an entry {INDICATOR!r} of their own; leave the indicator "
            "out with agent_indicator=False (--env.agent_indicator false)"
        )
    is_vector = isinstance(seen, specs.Array) and len(seen.shape) == 1 and seen.dtype == np.float32

    def join(seen: specs.Nest, who: Any) -> specs.Nest:
        if is_vector:
            return np.concatenate([seen, who])
        if isinstance(seen, Mapping):
            return {**seen, INDICATOR: who}
        return {action_masks.OBSERVATION: seen, INDICATOR: who}

    def reader(read: Reader, one_hot: np.ndarray) -> Reader:
        def read_joined(observation: Any) -> specs.Nest:
            nest = read(observation)
            joined = join(action_masks.visible(nest), one_hot)
            return action_masks.with_visible(nest, joined)

        return read_joined

    joined = _joined_vector(seen, who) if is_vector else join(seen, who)
    one_hots = np.eye(count, dtype=np.float32)
    found = [reader(read, one_hot) for read, one_hot in zip(readers, one_hots, strict=True)]
    return action_masks.with_visible(spec, joined), found


def _joined_vector(seen: specs.Array, who: specs.BoundedArray) -> specs.Array:
    """Returns the spec of a vector with the one-hot behind it."""
    shape = (seen.shape[0] + who.shape[0],)
    is_bounded = isinstance(seen, specs.BoundedArray)
    own = (seen.minimum, seen.maximum) if is_bounded else (-np.inf, np.inf)
    bounds = [
        np.append(np.broadcast_to(bound, seen.shape), np.full(who.shape, of_who, np.float32))
        for bound, of_who in zip(own, (0.0, 1.0), strict=True)
    ]
    return specs.BoundedArray(shape, seen.dtype, *bounds, seen.name)


def indicator(observation: Any, count: int) -> Any:
    """Returns the one-hot [..., agents] of observations that say who sees them.

    Args:
      observation: arrays with any leading dimensions, or their spec.
      count: agents of the environment.
    """
    seen = action_masks.visible(observation)
    return seen[INDICATOR] if isinstance(seen, Mapping) else seen[..., -count:]


def require_indicator(spec: specs.Nest, count: int) -> None:
    """Raises InvalidOptionError where observations of a spec do not say which of so many agents
    sees them."""
    seen = action_masks.visible(spec)
    if isinstance(seen, Mapping):
        found = INDICATOR in seen and seen[INDICATOR].shape == (count,)
    else:
        found = isinstance(seen, specs.BoundedArray) and len(seen.shape) == 1
        if found:
            low, high = (
                np.broadcast_to(bound, seen.shape)[-count:]
                for bound in (seen.minimum, seen.maximum)
            )
            found = len(low) == count and not low.any() and bool((high == 1).all())
    if not found:
        raise InvalidOptionError(
            f"observations do not say which of {count} agents sees them; leave agent_indicator at "
            "True (--env.agent_indicator true)"
        )
