"""MountainCar with three actions and with a continuous one, as Gymnasium has them."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ... import specs
from ..interface import FunctionalEnvironment, Key, StepOutput

_LEFT, _RIGHT, _MAX_SPEED, _GRAVITY = -1.2, 0.6, 0.07, 0.0025


class MountainCar(NamedTuple):
    """State: position and velocity along the valley; float32 []."""

    position: jax.Array
    velocity: jax.Array


def mountain_car(*, goal_velocity: float = 0.0) -> FunctionalEnvironment:
    """Builds MountainCar: a car too weak for the hill swings itself up (Moore, 1990). Actions push
    left, not at all, or right; each step costs 1 until the goal is reached.

    Args:
      goal_velocity: velocity at the goal below which it does not count.
    """

    def step(state: MountainCar, action: jax.Array, key: Key) -> tuple[MountainCar, StepOutput]:
        del key
        state = _move(state, 0.001 * (action - 1))
        there = (state.position >= 0.5) & (state.velocity >= goal_velocity)
        outcome = StepOutput(jnp.stack(state), jnp.float32(-1.0), there, jnp.bool_(False))
        return state, outcome

    actions = specs.DiscreteArray(3, np.int32, "action")
    return _environment(step, actions, max_episode_steps=200)


def continuous_mountain_car(*, goal_velocity: float = 0.0) -> FunctionalEnvironment:
    """Builds MountainCar with a force in [-1, 1]: the goal is worth 100, a force a tenth of its
    square.

    Args:
      goal_velocity: velocity at the goal below which it does not count.
    """

    def step(state: MountainCar, action: jax.Array, key: Key) -> tuple[MountainCar, StepOutput]:
        del key
        state = _move(state, 0.0015 * jnp.clip(action[0], -1.0, 1.0))
        there = (state.position >= 0.45) & (state.velocity >= goal_velocity)
        reward = jnp.where(there, 100.0, 0.0) - 0.1 * action[0] ** 2
        return state, StepOutput(jnp.stack(state), reward, there, jnp.bool_(False))

    actions = specs.BoundedArray((1,), np.float32, -1.0, 1.0, "action")
    return _environment(step, actions, max_episode_steps=999)


def _environment(step: Any, actions: specs.Array, max_episode_steps: int) -> FunctionalEnvironment:
    def reset(key: Key) -> tuple[MountainCar, jax.Array]:
        position = jax.random.uniform(key, (), minval=-0.6, maxval=-0.4)
        state = MountainCar(position, jnp.float32(0.0))
        return state, jnp.stack(state)

    low, high = (
        np.array(ends, np.float32) for ends in ([_LEFT, -_MAX_SPEED], [_RIGHT, _MAX_SPEED])
    )
    observations = specs.BoundedArray((2,), np.float32, low, high, "observation")
    return FunctionalEnvironment(reset, step, observations, actions, max_episode_steps)


def _move(state: MountainCar, push: jax.Array) -> MountainCar:
    """Returns the state after an acceleration; the left end is a wall that takes all speed."""
    velocity = state.velocity + push - _GRAVITY * jnp.cos(3 * state.position)
    velocity = jnp.clip(velocity, -_MAX_SPEED, _MAX_SPEED)
    position = jnp.clip(state.position + velocity, _LEFT, _RIGHT)
    return MountainCar(position, jnp.where((position == _LEFT) & (velocity < 0), 0.0, velocity))
