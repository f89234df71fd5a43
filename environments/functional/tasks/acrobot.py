"""Acrobot, as Gymnasium has it."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ... import specs
from ..interface import FunctionalEnvironment, Key, StepOutput

_GRAVITY, _SECONDS = 9.8, 0.2
_MAX_SPEED_1, _MAX_SPEED_2 = 4 * np.pi, 9 * np.pi


class Acrobot(NamedTuple):
    """State: angle of the first link from hanging down, that of the second from the first [rad],
    and their speeds; float32 []."""

    angle_1: jax.Array
    angle_2: jax.Array
    speed_1: jax.Array
    speed_2: jax.Array


def acrobot() -> FunctionalEnvironment:
    """Builds Acrobot: two links of 1 m and 1 kg, a motor between them, and a bar to be reached
    (Sutton, 1996; the equations are those of Sutton and Barto's book, section 11.3 of its first
    edition). Each step costs 1 until the bar is reached."""

    def reset(key: Key) -> tuple[Acrobot, jax.Array]:
        state = Acrobot(*jax.random.uniform(key, (4,), minval=-0.1, maxval=0.1))
        return state, _observe(state)

    def step(state: Acrobot, action: jax.Array, key: Key) -> tuple[Acrobot, StepOutput]:
        del key
        moved = _runge_kutta(jnp.stack(state), jnp.float32(action - 1))
        state = Acrobot(
            _wrap(moved[0]),
            _wrap(moved[1]),
            jnp.clip(moved[2], -_MAX_SPEED_1, _MAX_SPEED_1),
            jnp.clip(moved[3], -_MAX_SPEED_2, _MAX_SPEED_2),
        )
        there = -jnp.cos(state.angle_1) - jnp.cos(state.angle_1 + state.angle_2) > 1.0
        reward = jnp.where(there, 0.0, -1.0)
        return state, StepOutput(_observe(state), reward, there, jnp.bool_(False))

    high = np.array([1.0, 1.0, 1.0, 1.0, _MAX_SPEED_1, _MAX_SPEED_2], np.float32)
    return FunctionalEnvironment(
        reset,
        step,
        specs.BoundedArray((6,), np.float32, -high, high, "observation"),
        specs.DiscreteArray(3, np.int32, "action"),
        max_episode_steps=500,
    )


def _observe(state: Acrobot) -> jax.Array:
    angles = (state.angle_1, state.angle_2)
    turned = [f(angle) for angle in angles for f in (jnp.cos, jnp.sin)]
    return jnp.stack([*turned, state.speed_1, state.speed_2])


def _wrap(angle: jax.Array) -> jax.Array:
    """Returns the same angle within [-pi, pi]."""
    turns = jnp.ceil((jnp.abs(angle) - np.pi) / (2 * np.pi))
    return angle - jnp.sign(angle) * jnp.maximum(turns, 0.0) * (2 * np.pi)


def _runge_kutta(state: jax.Array, torque: jax.Array) -> jax.Array:
    """Returns the state [4] after one step of the Runge-Kutta method of fourth order."""
    half = _SECONDS / 2
    first = _derivative(state, torque)
    second = _derivative(state + half * first, torque)
    third = _derivative(state + half * second, torque)
    fourth = _derivative(state + _SECONDS * third, torque)
    return state + _SECONDS / 6 * (first + 2 * second + 2 * third + fourth)


def _derivative(state: jax.Array, torque: jax.Array) -> jax.Array:
    """Returns the derivative by time of the state [4]; both links have mass, length and moment of
    inertia 1, and their centres of mass in the middle."""
    angle_1, angle_2, speed_1, speed_2 = state
    sine, cosine = jnp.sin(angle_2), jnp.cos(angle_2)
    inertia_1 = 3.5 + cosine  # 1/4 + (1 + 1/4 + cos) + 1 + 1
    inertia_2 = 1.25 + 0.5 * cosine  # (1/4 + cos/2) + 1
    weight_2 = 0.5 * _GRAVITY * jnp.sin(angle_1 + angle_2)
    weight_1 = (
        -0.5 * speed_2**2 * sine
        - speed_2 * speed_1 * sine
        + 1.5 * _GRAVITY * jnp.sin(angle_1)
        + weight_2
    )
    coupling = inertia_2 / inertia_1
    acceleration_2 = (torque + coupling * weight_1 - 0.5 * speed_1**2 * sine - weight_2) / (
        1.25 - inertia_2 * coupling
    )
    acceleration_1 = -(inertia_2 * acceleration_2 + weight_1) / inertia_1
    return jnp.stack([speed_1, speed_2, acceleration_1, acceleration_2])
