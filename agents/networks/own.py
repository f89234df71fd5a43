"""Torsos of the user's own, that a config names as MODULE:NAME. B: batch, F: features.

What is named is a function of the observations' spec that returns a function from observations
[B, ...] to features [B, F]. It is called inside a haiku transform, so that it may also be a
`haiku.Module` class whose constructor takes the spec.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from ...environments import action_masks
from ..configs import TorsoConfig
from .core import dummy, from_haiku

Nest = Any


class TorsoError(ValueError):
    """A config names as its torso something that is none; the message begins with the field."""


def named(config: Any) -> str | None:
    """Returns the MODULE:NAME of a config's own torso; None: it has one of the package's."""
    return config.torso if isinstance(config, TorsoConfig) and ":" in config.torso else None


def find(torso: str) -> Callable[[Nest], Any]:
    """Imports what is named.

    Args:
      torso: MODULE:NAME.

    Raises:
      TorsoError: if there is none that can be called.
    """
    module, _, name = torso.rpartition(":")
    try:
        found: Any = importlib.import_module(module)
        for part in name.split("."):
            found = getattr(found, part)
    except Exception as error:  # Whatever the user's module raises.
        raise TorsoError(
            f"torso is {torso}, which cannot be imported: {type(error).__name__}: {error}; a "
            "module is looked for in the current directory and on Python's path."
        ) from error
    if not callable(found):
        raise TorsoError(
            f"torso is {torso}, a {type(found).__name__}; it must be a function of the "
            "observations' spec."
        )
    return found


def make(torso: str, spec: Nest, dtype: Any = jnp.float32) -> Callable[[Nest], jax.Array]:
    """The named torso, to be called inside a haiku transform: observations to features [B, F].

    Args:
      torso: MODULE:NAME.
      spec: of the observations; the torso is given neither a mask of legal actions nor its spec.
      dtype: that the features are given in.

    Raises:
      TorsoError: if it cannot be found, and where it is called if it gives no such features.
    """
    make_features, seen = find(torso), action_masks.visible(spec)

    def apply(observation: Nest) -> jax.Array:
        features = make_features(seen)
        if not callable(features):
            raise TorsoError(
                f"torso is {torso}, which returns a {type(features).__name__}; it must return a "
                "function of observations [B, ...]."
            )
        visible = action_masks.visible(observation)
        found = features(visible)
        batch = jax.tree.leaves(visible)[0].shape[0]
        shape, kind = getattr(found, "shape", None), getattr(found, "dtype", None)
        if shape is None or len(shape) != 2 or shape[0] != batch or not _is_real(kind):
            shown = type(found).__name__ if shape is None else f"{kind}{list(shape)}"
            raise TorsoError(
                f"torso is {torso}, which makes {shown} of {batch} observations; it must make "
                f"floating-point features [B, F], here [{batch}, F]."
            )
        return found.astype(dtype)

    return apply


def check(torso: str, spec: Nest) -> None:
    """Traces the named torso on observations of a spec, with no device touched.

    Raises:
      TorsoError: if it cannot be found or gives no features; or whatever it raises.
    """
    network = from_haiku(make(torso, spec), dummy(spec, 1))

    def trace(key: jax.Array) -> Nest:
        # Parameters are made for one observation and must do for several.
        return network.apply(network.init(key), dummy(spec, 3))

    jax.eval_shape(trace, jax.random.key(0))


def _is_real(dtype: Any) -> bool:
    return dtype is not None and bool(jnp.issubdtype(dtype, jnp.floating))
