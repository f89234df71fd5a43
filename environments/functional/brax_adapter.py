"""Tasks of brax: "jax:brax/halfcheetah"."""

from __future__ import annotations

import contextlib
import functools
import inspect
import io
import warnings
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np

from .. import registry, rendering, specs
from .interface import FunctionalEnvironment, Key, StepOutput

_EPISODE_STEPS = 1000
"""Time limit that brax trains with."""


def make(id: str, name: str, **arguments: Any) -> FunctionalEnvironment:
    """Makes a task (Freeman et al., 2021, https://arxiv.org/abs/2106.13281), without its wrappers.

    An episode terminates where the task is done, and is truncated after 1,000 steps. Actions are in
    [-1, 1], which each task scales to the ranges of its motors.

    Args:
      id: for errors.
      name: of the task.
      **arguments: of the task's constructor; `backend` is the physics: "generalized" (the default),
        "spring", "positional" or "mjx".

    Raises:
      MissingExtraError: if brax is not installed.
      UnknownEnvironmentError: if it has no such task.
      InvalidOptionError: if the task has no such argument, or cannot have its value.
    """
    with _quiet():
        tasks = dict(registry.import_extra("brax.envs", "brax", id)._envs)
        tasks.pop("fast", None)  # Counts calls in Python, for tests of brax's own.
        registry.check_known(id, [f"{id.removesuffix(name)}{known}" for known in tasks])
        registry.check_arguments(id, _parameters(tasks[name]), arguments)
        try:
            task = tasks[name](**arguments)
        except (TypeError, ValueError) as error:
            raise registry.invalid_arguments(id, arguments, error) from error
        state = jax.eval_shape(task.reset, jax.random.key(0))
    return FunctionalEnvironment(
        functools.partial(_reset, task),
        functools.partial(_step, task),
        specs.Array(state.obs.shape, np.float32, "observation"),
        specs.BoundedArray((task.action_size,), np.float32, -1.0, 1.0, "action"),
        max_episode_steps=_EPISODE_STEPS,
    )


def _reset(task: Any, key: Key) -> tuple[Any, jax.Array]:
    state = task.reset(key)
    return state, state.obs


def _step(task: Any, state: Any, action: jax.Array, key: Key) -> tuple[Any, StepOutput]:
    del key
    # A copy of the containers: tasks write into the dicts of the state that they are given.
    state = task.step(jax.tree.map(lambda leaf: leaf, state), action)
    return state, StepOutput(state.obs, state.reward, state.done > 0, jax.numpy.bool_(False))


def _parameters(task: type) -> dict[str, inspect.Parameter]:
    known = inspect.signature(task).parameters.values()
    return {one.name: one for one in known if one.kind is not one.VAR_KEYWORD}


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Hides that brax is no longer maintained and that packages it could use are missing."""
    rendering.log_mujoco()
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        yield
