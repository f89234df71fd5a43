"""Pendulum, as Gymnasium has it."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ... import specs
from ..interface import FunctionalEnvironment, Key, StepOutput

_MAX_SPEED, _MAX_TORQUE, _SECONDS = 8.0, 2.0, 0.05


class Pendulum(NamedTuple):
    """State: angle from upright [rad] and angular velocity [rad/s]; float32 []."""

    angle: jax.Array
    velocity: jax.Array


def pendulum(*, g: float = 10.0) -> FunctionalEnvironment:
    """Builds Pendulum: a rod of 1 m and 1 kg that a weak motor swings up and holds.

    Args:
      g: acceleration of gravity [m/s^2].
    """

    def reset(key: Key) -> tuple[Pendulum, jax.Array]:
        angle, velocity = jax.random.uniform(key, (2,), minval=-1.0)
        state = Pendulum(np.pi * angle, velocity)
        return state, _observe(state)

    def step(state: Pendulum, action: jax.Array, key: Key) -> tuple[Pendulum, StepOutput]:
        del key
        torque = jnp.clip(action[0], -_MAX_TORQUE, _MAX_TORQUE)
        upright = jnp.mod(state.angle + np.pi, 2 * np.pi) - np.pi
        cost = upright**2 + 0.1 * state.velocity**2 + 0.001 * torque**2
        acceleration = 1.5 * g * jnp.sin(state.angle) + 3.0 * torque
        velocity = state.velocity + acceleration * _SECONDS
        velocity = jnp.clip(velocity, -_MAX_SPEED, _MAX_SPEED)
        state = Pendulum(state.angle + velocity * _SECONDS, velocity)
        never = jnp.bool_(False)
        return state, StepOutput(_observe(state), -cost, never, never)

    high = np.array([1.0, 1.0, _MAX_SPEED], np.float32)
    return FunctionalEnvironment(
        reset,
        step,
        specs.BoundedArray((3,), np.float32, -high, high, "observation"),
        specs.BoundedArray((1,), np.float32, -_MAX_TORQUE, _MAX_TORQUE, "action"),
        max_episode_steps=200,
    )


def _observe(state: Pendulum) -> jax.Array:
    return jnp.stack([jnp.cos(state.angle), jnp.sin(state.angle), state.velocity])


def masked_pendulum(*, g: float = 10.0) -> FunctionalEnvironment:
    """Builds Pendulum without its velocity: cosine and sine of the angle, float32 [2].

    Args:
      g: as of `pendulum`.
    """
    whole = pendulum(g=g)

    def reset(key: Key) -> tuple[Pendulum, jax.Array]:
        state, observation = whole.reset(key)
        return state, observation[:2]

    def step(state: Pendulum, action: jax.Array, key: Key) -> tuple[Pendulum, StepOutput]:
        state, outcome = whole.step(state, action, key)
        return state, outcome._replace(observation=outcome.observation[:2])

    seen = specs.BoundedArray((2,), np.float32, -1.0, 1.0, "observation")
    return whole._replace(reset=reset, step=step, observations=seen)
