"""Changes of functional environments: each takes one and returns another."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import tree

from .. import specs
from ..errors import InvalidOptionError
from ..spaces import ACTION_MODES, ActionMode
from .interface import FunctionalEnvironment, Key, State, StepOutput


def time_limit(environment: FunctionalEnvironment, steps: int) -> FunctionalEnvironment:
    """Truncates episodes after a number of steps, unless they terminate with the last of them."""

    def reset(key: Key) -> tuple[State, specs.Nest]:
        state, observation = environment.reset(key)
        return (state, jnp.int32(0)), observation

    def step(state: State, action: specs.Nest, key: Key) -> tuple[State, StepOutput]:
        inner, taken = state
        inner, outcome = environment.step(inner, action, key)
        taken += 1
        truncated = outcome.truncated | ((taken >= steps) & ~outcome.terminated)
        return (inner, taken), outcome._replace(truncated=truncated)

    return environment._replace(reset=reset, step=step, max_episode_steps=steps)


def clip_rewards(environment: FunctionalEnvironment, limit: float) -> FunctionalEnvironment:
    """Clips rewards to +-`limit`."""

    def step(state: State, action: specs.Nest, key: Key) -> tuple[State, StepOutput]:
        state, outcome = environment.step(state, action, key)
        return state, outcome._replace(reward=jnp.clip(outcome.reward, -limit, limit))

    return environment._replace(step=step)


def bound_actions(environment: FunctionalEnvironment, mode: ActionMode) -> FunctionalEnvironment:
    """Treats actions in a box of floats as `spaces.ActionMode` says.

    With "strict" the environment is returned as it is: a compiled program cannot refuse an action,
    so that whoever steps it from outside compares actions with the spec.

    Raises:
      InvalidOptionError: if `mode` is no such mode, or actions cannot be rescaled to the bounds.
    """
    if mode not in ACTION_MODES:
        raise InvalidOptionError(f"actions must be one of {', '.join(ACTION_MODES)}, got {mode!r}")
    boxes = [
        isinstance(spec, specs.BoundedArray) and spec.dtype.kind == "f"
        for spec in tree.flatten(environment.actions)
    ]
    if mode == "strict" or not any(boxes):
        return environment
    given = environment.actions
    if mode == "rescale":
        given = tree.map_structure(_unit_box, environment.actions)

    def bounded(spec: specs.Array, action: jax.Array) -> jax.Array:
        if not isinstance(spec, specs.BoundedArray) or spec.dtype.kind != "f":
            return action
        low, high = spec.minimum, spec.maximum
        if mode == "clip":
            return jnp.clip(action, low, high)
        return jnp.clip(action, -1.0, 1.0) * ((high - low) / 2) + (high + low) / 2

    def step(state: State, action: specs.Nest, key: Key) -> tuple[State, StepOutput]:
        taken = tree.map_structure(bounded, environment.actions, action)
        return environment.step(state, taken, key)

    return environment._replace(step=step, actions=given)


def _unit_box(spec: specs.Array) -> specs.Array:
    if spec.dtype.kind != "f":
        return spec
    if not (
        isinstance(spec, specs.BoundedArray)
        and np.isfinite(spec.minimum).all()
        and np.isfinite(spec.maximum).all()
    ):
        raise InvalidOptionError(
            f"{spec.name}: actions cannot be rescaled to {spec}, whose bounds are not finite; take "
            "'clip' or 'strict'"
        )
    return specs.BoundedArray(spec.shape, spec.dtype, -1.0, 1.0, spec.name)
