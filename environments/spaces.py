"""Gymnasium spaces as `dm_env` specs, and the functions that carry values across.

Everything is compiled once, when an environment is wrapped: a reader turns what the environment
returns into a nest that fits the spec, a writer turns an action that fits the spec into what the
space takes. Numbers of 64 bits become 32 bits wide, which is what JAX computes with.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable
from typing import Any, Literal, get_args

import numpy as np
from gymnasium import spaces

from . import specs
from .errors import InvalidActionError, InvalidOptionError, UnsupportedSpaceError

# What becomes of actions in a Box: "strict" refuses those outside of the bounds, "clip" moves them
# onto the bounds, "rescale" lets the agent act in [-1, 1] (clipped) and stretches that range.
ActionMode = Literal["strict", "clip", "rescale"]
ACTION_MODES: tuple[str, ...] = get_args(ActionMode)

_NARROW = {"float64": np.float32, "int64": np.int32, "uint64": np.uint32}


def observation_spec(space: spaces.Space, name: str = "observation") -> specs.Nest:
    """The spec of what `observation_reader(space)` returns.

    Raises:
      UnsupportedSpaceError: if the space, or one inside it, is not a Box, Discrete,
        MultiDiscrete, MultiBinary, Dict or Tuple.
    """
    if isinstance(space, spaces.Dict | spaces.Tuple | spaces.Box) and _is_empty(space):
        raise UnsupportedSpaceError(f"{name}: the space {space} is empty")
    if isinstance(space, spaces.Dict):
        return {key: observation_spec(part, f"{name}/{key}") for key, part in space.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(observation_spec(part, f"{name}/{i}") for i, part in enumerate(space))
    if isinstance(space, spaces.Box):
        return _box_spec(space, name)
    if isinstance(space, spaces.Discrete):
        return specs.DiscreteArray(int(space.n), np.int32, name)
    if isinstance(space, spaces.MultiDiscrete):
        return specs.BoundedArray(space.shape, np.int32, 0, space.nvec - 1, name)
    if isinstance(space, spaces.MultiBinary):
        return specs.BoundedArray(space.shape, np.int8, 0, 1, name)
    raise UnsupportedSpaceError(
        f"{name}: a space of type {type(space).__name__} has no spec; "
        "Box, Discrete, MultiDiscrete, MultiBinary, Dict and Tuple have"
    )


def _is_empty(space: spaces.Space) -> bool:
    """True if there is nothing in a Dict, a Tuple or a Box."""
    return not space.spaces if hasattr(space, "spaces") else 0 in (space.shape or ())


def observation_reader(space: spaces.Space) -> Callable[[Any], specs.Nest]:
    """A function from what the environment returns to a nest that fits `observation_spec(space)`.

    Discrete values are counted from 0 whatever the space's `start`.
    """
    if isinstance(space, spaces.Dict):
        readers = {key: observation_reader(part) for key, part in space.items()}
        return lambda value: {key: read(value[key]) for key, read in readers.items()}
    if isinstance(space, spaces.Tuple):
        parts = [observation_reader(part) for part in space]
        return lambda value: tuple(read(item) for read, item in zip(parts, value, strict=True))
    if isinstance(space, spaces.Discrete):
        start = int(space.start)
        return lambda value: np.int32(value - start)
    if isinstance(space, spaces.MultiDiscrete):
        starts = space.start
        return lambda value: np.asarray(value - starts, np.int32)
    # A partial of a C function costs no Python frame; it copies only where the dtype differs.
    return functools.partial(np.asarray, dtype=observation_spec(space).dtype)


def action_spec(space: spaces.Space, mode: ActionMode, name: str = "action") -> specs.Nest:
    """The spec of the actions that `action_writer(space, mode)` takes.

    Raises:
      InvalidOptionError: if `mode` is none of `ACTION_MODES`, or "rescale" and a bound is
        infinite.
      UnsupportedSpaceError: as `observation_spec`.
    """
    if mode not in ACTION_MODES:
        raise InvalidOptionError(f"actions must be one of {', '.join(ACTION_MODES)}, got {mode!r}")
    if isinstance(space, spaces.Dict):
        return {key: action_spec(part, mode, f"{name}/{key}") for key, part in space.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(action_spec(part, mode, f"{name}/{i}") for i, part in enumerate(space))
    if isinstance(space, spaces.Box) and mode == "rescale":
        if not space.is_bounded("both") or space.dtype.kind != "f":
            raise InvalidOptionError(
                f"{name}: actions cannot be rescaled to {space}, whose bounds are not finite "
                "floats; take 'clip' or 'strict'"
            )
        return specs.BoundedArray(space.shape, _narrow(space.dtype), -1.0, 1.0, name)
    return observation_spec(space, name)


def action_writer(
    space: spaces.Space, mode: ActionMode, name: str = "action"
) -> Callable[[Any], Any]:
    """A function from an action that fits `action_spec(space, mode)` to one that the space takes.

    The function raises `InvalidActionError` for an action that does not fit.
    """
    if isinstance(space, spaces.Dict):
        named = {key: action_writer(part, mode, f"{name}/{key}") for key, part in space.items()}
        return lambda action: {
            key: write(action[key]) for key, write in _paired_dict(named, action, name)
        }
    if isinstance(space, spaces.Tuple):
        parts = [action_writer(part, mode, f"{name}/{i}") for i, part in enumerate(space)]
        return lambda action: tuple(write(item) for write, item in _paired(parts, action, name))
    if isinstance(space, spaces.Discrete):
        return _discrete_writer(space, name)
    if isinstance(space, spaces.Box):
        return _box_writer(space, mode, name)
    return _counted_writer(space, name)


def _discrete_writer(space: spaces.Discrete, name: str) -> Callable[[Any], Any]:
    num_values, start, index = int(space.n), int(space.start), operator.index

    def write(action: Any) -> int:
        try:
            value = index(action)
        except TypeError:
            value = -1
        if 0 <= value < num_values:
            return value + start
        raise InvalidActionError(
            f"{name} must be an integer from 0 to {num_values - 1}, got {_show(action)}"
        )

    return write


def _counted_writer(space: spaces.Space, name: str) -> Callable[[Any], Any]:
    """The writer of a MultiDiscrete or MultiBinary space."""
    spec = observation_spec(space, name)
    starts = getattr(space, "start", 0)
    low, high, shape = spec.minimum, spec.maximum, spec.shape

    def write(action: Any) -> np.ndarray:
        value = np.asarray(action)
        fits = value.shape == shape and value.dtype.kind in "iub"
        if fits and (value >= low).all() and (value <= high).all():
            return np.asarray(value + starts, space.dtype)
        raise InvalidActionError(
            f"{name} must be integers of shape {shape} from {low.tolist()} to {high.tolist()}, "
            f"got {_show(action)}"
        )

    return write


def _box_writer(space: spaces.Box, mode: ActionMode, name: str) -> Callable[[Any], Any]:
    shape, dtype = space.shape, space.dtype
    spec = action_spec(space, mode, name)
    # The spec's bounds are the space's in 32 bits: an action on the spec's bound may lie an ulp
    # beyond the space's, and is moved onto it.
    narrow = _narrow(dtype)
    fits_spec = _within(*(np.broadcast_to(bound, shape) for bound in _bounds(spec)))
    fits_space = _within(space.low, space.high)
    middle = half = np.zeros(())
    if mode == "rescale":  # Only then are all bounds finite.
        low, high = space.low.astype(np.float64), space.high.astype(np.float64)
        middle, half = (high + low) / 2, (high - low) / 2

    def as_array(action: Any) -> np.ndarray:
        try:
            value = np.asarray(action, narrow)
        except (TypeError, ValueError):
            value = None
        if value is None or value.shape != shape:
            raise InvalidActionError(
                f"{name} must be numbers of shape {shape}, got {_show(action)}"
            )
        return value

    def to_bounds(value: np.ndarray, low: Any, high: Any) -> np.ndarray:
        if np.isnan(value).any():
            raise InvalidActionError(f"{name} must be numbers, got {_show(value)}")
        return np.minimum(np.maximum(value, low), high)

    def strict(action: Any) -> np.ndarray:
        value = as_array(action)
        if fits_space(value):
            return value.astype(dtype, copy=False)
        if not fits_spec(value):
            raise InvalidActionError(
                f"{name} must be from {space.low.tolist()} to {space.high.tolist()}, "
                f"got {_show(value)}; actions='clip' has it clipped"
            )
        return to_bounds(value, space.low, space.high).astype(dtype, copy=False)

    def clip(action: Any) -> np.ndarray:
        value = as_array(action)
        if not fits_space(value):
            value = to_bounds(value, space.low, space.high)
        return value.astype(dtype, copy=False)

    def rescale(action: Any) -> np.ndarray:
        value = as_array(action)
        if not fits_spec(value):
            value = to_bounds(value, -1.0, 1.0)
        stretched = value * half
        stretched += middle
        if dtype == np.float64:
            return to_bounds(stretched, space.low, space.high)
        # An ulp of 64 bits beyond a bound of 32 bits is rounded away.
        return stretched.astype(dtype)

    return {"strict": strict, "clip": clip, "rescale": rescale}[mode]


def _within(low: np.ndarray, high: np.ndarray) -> Callable[[np.ndarray], bool]:
    """Builds a test that is True if low <= value <= high everywhere (False for NaN)."""
    if low.size > 32:
        return lambda value: bool(((value >= low) & (value <= high)).all())
    # For a few numbers Python's comparisons take a fifth of the time of numpy's reductions.
    pairs = list(zip(low.ravel().tolist(), high.ravel().tolist(), strict=True))

    def within(value: np.ndarray) -> bool:
        for item, (least, most) in zip(value.ravel().tolist(), pairs, strict=True):
            if not least <= item <= most:
                return False
        return True

    return within


def _bounds(spec: specs.Array) -> tuple[Any, Any]:
    if isinstance(spec, specs.BoundedArray):
        return spec.minimum, spec.maximum
    return -np.inf, np.inf


def _box_spec(space: spaces.Box, name: str) -> specs.Array:
    dtype = _narrow(space.dtype)
    if dtype.kind in "iu":
        info = np.iinfo(dtype)
        low, high = (np.clip(bound, info.min, info.max) for bound in (space.low, space.high))
        bounded = (low > info.min).any() or (high < info.max).any() or dtype == np.uint8
    else:
        low, high = space.low, space.high
        bounded = np.isfinite(low).any() or np.isfinite(high).any()
    if not bounded:
        return specs.Array(space.shape, dtype, name)
    return specs.BoundedArray(space.shape, dtype, _compact(low), _compact(high), name)


def _compact(bound: np.ndarray) -> np.ndarray:
    """One number where all are the same: an image's bounds need not be images."""
    return bound.flat[0] if bound.size and (bound == bound.flat[0]).all() else bound


def _narrow(dtype: Any) -> np.dtype:
    return np.dtype(_NARROW.get(np.dtype(dtype).name, dtype))


def _paired(parts: list[Callable], action: Any, name: str) -> Any:
    if not isinstance(action, tuple | list) or len(action) != len(parts):
        raise InvalidActionError(f"{name} must be a tuple of {len(parts)}, got {_show(action)}")
    return zip(parts, action, strict=True)


def _paired_dict(named: dict[str, Callable], action: Any, name: str) -> Any:
    if not isinstance(action, dict) or action.keys() != named.keys():
        raise InvalidActionError(f"{name} must be a dict of {list(named)}, got {_show(action)}")
    return named.items()


def _show(value: Any) -> str:
    """A value on one line, however large it is."""
    text = " ".join(repr(value).split())
    return text if len(text) <= 120 else f"{text[:117]}..."
