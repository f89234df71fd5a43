"""V-trace, and the smallest learner that uses it.

T: time; `_t` is a step, `_tp1` the next one.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from . import layers, optimizers
from .example import DATA_AND_MODEL, Example
from .training import initial_state, supervised


def vtrace(
    values_t: jax.Array,
    values_tp1: jax.Array,
    rewards: jax.Array,
    discounts: jax.Array,
    rhos: jax.Array,
    lambda_: float = 1.0,
) -> tuple[jax.Array, jax.Array]:
    """V-trace (https://arxiv.org/abs/1802.01561): targets and policy-gradient advantages, both [T].

    Args:
      values_t: [T] values of the states.
      values_tp1: [T] values of the states after them.
      rewards: [T] rewards.
      discounts: [T] discounts.
      rhos: [T] importance ratios, not clipped.
      lambda_: mixes the truncated traces.
    """
    clipped = jnp.minimum(1.0, rhos)
    deltas = clipped * (rewards + discounts * values_tp1 - values_t)

    def body(carry: jax.Array, x: tuple[jax.Array, ...]) -> tuple[jax.Array, jax.Array]:
        delta, discount, trace = x
        carry = delta + discount * trace * carry
        return carry, carry

    start = jnp.zeros((), values_t.dtype)
    _, errors = lax.scan(body, start, (deltas, discounts, lambda_ * clipped), reverse=True)
    targets = values_t + errors
    targets_tp1 = jnp.concatenate([targets[1:], values_tp1[-1:]])
    advantages = clipped * (rewards + discounts * targets_tp1 - values_t)
    return lax.stop_gradient(targets), lax.stop_gradient(advantages)


@dataclasses.dataclass(frozen=True)
class Sizes:
    """Sizes of the learner.

    Attributes:
      batch: trajectories in a batch.
      length: steps in a trajectory.
      features: features of an observation.
      hidden: features within the value network.
      optimizer: "sgd" or "adam".
    """

    batch: int = 8
    length: int = 6
    features: int = 8
    hidden: int = 16
    optimizer: str = "adam"


def make_vtrace(**sizes: Any) -> Example:
    """Off-policy evaluation with V-trace targets."""
    config = Sizes(**sizes)
    optimizer = optimizers.make(config.optimizer)

    def params_init(key: jax.Array) -> layers.Params:
        return layers.mlp_init(key, (config.features, config.hidden, 1))

    def loss(params: layers.Params, batch: dict[str, jax.Array]) -> jax.Array:
        values = layers.mlp(params, batch["observation"])[..., 0]
        goal, _ = jax.vmap(vtrace)(
            values[:, :-1], values[:, 1:], batch["reward"], batch["discount"], batch["rho"]
        )
        return 0.5 * jnp.mean(jnp.square(goal - values[:, :-1]))

    def make_batch(key: jax.Array) -> dict[str, jax.Array]:
        keys = jax.random.split(key, 4)
        shape = (config.batch, config.length)
        observation_shape = (config.batch, config.length + 1, config.features)
        return {
            "observation": jax.random.normal(keys[0], observation_shape),
            "reward": jax.random.normal(keys[1], shape),
            "discount": 0.99 * jax.random.bernoulli(keys[2], 0.9, shape),
            "rho": jnp.exp(jax.random.normal(keys[3], shape)),
        }

    return Example(
        name="vtrace",
        update=supervised(loss, optimizer),
        init=initial_state(params_init, optimizer),
        make_batch=make_batch,
        schedules=DATA_AND_MODEL,
        config=config,
    )
