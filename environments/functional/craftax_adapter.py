"""Worlds of craftax: "jax:craftax/Craftax-Classic-Symbolic-v1"."""

from __future__ import annotations

import functools
import inspect
import warnings
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from .. import registry, specs
from .interface import FunctionalEnvironment, Key, StepOutput

_IDS = (
    "Craftax-Symbolic-v1",
    "Craftax-Pixels-v1",
    "Craftax-Classic-Symbolic-v1",
    "Craftax-Classic-Pixels-v1",
)
_LIMIT = "max_timesteps"


def make(id: str, name: str, **arguments: Any) -> FunctionalEnvironment:
    """Makes a world (Matthews et al., 2024, https://arxiv.org/abs/2402.16801), without auto-reset.

    Its time limit truncates an episode; craftax itself does not tell it from death.

    Args:
      id: for errors.
      name: one of `_IDS`.
      **arguments: fields of its `EnvParams`, but for the time limit.

    Raises:
      MissingExtraError: if craftax is not installed.
      UnknownEnvironmentError: if it has no such world.
      InvalidOptionError: if the world has no such argument.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        envs = registry.import_extra("craftax.craftax_env", "craftax", id)
        registry.check_known(id, [f"{id.removesuffix(name)}{known}" for known in _IDS])
        world = envs.make_craftax_env_from_name(name, auto_reset=False)
    parameters = world.default_params
    known = dict(inspect.signature(type(parameters)).parameters)
    limit = getattr(parameters, _LIMIT)
    known.pop(_LIMIT)
    registry.check_arguments(id, known, arguments)
    parameters = parameters.replace(**{_LIMIT: 2**30, **arguments})
    space = world.observation_space(parameters)
    return FunctionalEnvironment(
        functools.partial(_reset, world, parameters),
        functools.partial(_step, world, parameters),
        specs.BoundedArray(space.shape, np.float32, space.low, space.high, "observation"),
        specs.DiscreteArray(world.action_space(parameters).n, np.int32, "action"),
        max_episode_steps=limit,
    )


def _reset(world: Any, parameters: Any, key: Key) -> tuple[Any, jax.Array]:
    observation, state = world.reset(key, parameters)
    return state, observation


def _step(
    world: Any, parameters: Any, state: Any, action: jax.Array, key: Key
) -> tuple[Any, StepOutput]:
    observation, state, reward, done, _ = world.step(key, state, action, parameters)
    return state, StepOutput(observation, reward, done, jnp.bool_(False))
