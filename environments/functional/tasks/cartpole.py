"""CartPole, as Gymnasium has it."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ... import specs
from ..interface import FunctionalEnvironment, Key, StepOutput

_GRAVITY, _CART_MASS, _POLE_MASS, _HALF_LENGTH = 9.8, 1.0, 0.1, 0.5
_FORCE, _SECONDS = 10.0, 0.02
_MAX_POSITION, _MAX_ANGLE = 2.4, np.radians(12.0)


class CartPole(NamedTuple):
    """State: position of the cart [m], angle of the pole [rad], and their speeds; float32 []."""

    position: jax.Array
    velocity: jax.Array
    angle: jax.Array
    angular_velocity: jax.Array


def cartpole(*, sutton_barto_reward: bool = False) -> FunctionalEnvironment:
    """Builds CartPole: a pole on a cart that is pushed left or right (Barto, Sutton and Anderson,
    1983, https://doi.org/10.1109/TSMC.1983.6313077).

    Args:
      sutton_barto_reward: rewards are 0, and -1 for the fall, instead of 1 for every step.
    """
    each, fall = (0.0, -1.0) if sutton_barto_reward else (1.0, 1.0)

    def reset(key: Key) -> tuple[CartPole, jax.Array]:
        observation = jax.random.uniform(key, (4,), minval=-0.05, maxval=0.05)
        return CartPole(*observation), observation

    def step(state: CartPole, action: jax.Array, key: Key) -> tuple[CartPole, StepOutput]:
        del key
        state = _move(state, jnp.where(action == 1, _FORCE, -_FORCE))
        fallen = (jnp.abs(state.position) > _MAX_POSITION) | (jnp.abs(state.angle) > _MAX_ANGLE)
        reward = jnp.where(fallen, fall, each)
        return state, StepOutput(jnp.stack(state), reward, fallen, jnp.bool_(False))

    high = np.array([2 * _MAX_POSITION, np.inf, 2 * _MAX_ANGLE, np.inf], np.float32)
    return FunctionalEnvironment(
        reset,
        step,
        specs.BoundedArray((4,), np.float32, -high, high, "observation"),
        specs.DiscreteArray(2, np.int32, "action"),
        max_episode_steps=500,
    )


def _move(state: CartPole, force: jax.Array) -> CartPole:
    """Returns the state after a force [N], by one step of Euler's method."""
    mass, moment = _CART_MASS + _POLE_MASS, _POLE_MASS * _HALF_LENGTH
    sine, cosine = jnp.sin(state.angle), jnp.cos(state.angle)
    pull = (force + moment * state.angular_velocity**2 * sine) / mass
    lever = _HALF_LENGTH * (4.0 / 3.0 - _POLE_MASS * cosine**2 / mass)
    turning = (_GRAVITY * sine - cosine * pull) / lever
    return CartPole(
        position=state.position + _SECONDS * state.velocity,
        velocity=state.velocity + _SECONDS * (pull - moment * turning * cosine / mass),
        angle=state.angle + _SECONDS * state.angular_velocity,
        angular_velocity=state.angular_velocity + _SECONDS * turning,
    )
