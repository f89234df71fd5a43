"""A policy-gradient update step over discrete actions: IMPALA."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from . import layers, optimizers, returns
from .example import DATA_AND_MODEL, Example

Tree = Any
Params = layers.Params


@dataclasses.dataclass(frozen=True)
class Sizes:
    """Sizes and constants.

    Attributes:
      batch: trajectories in a batch.
      length: steps in a trajectory.
      features: features of an observation.
      hidden: features of each hidden layer, and of the recurrent state.
      actions: number of actions.
      value_weight: weight of the value loss.
      entropy_weight: weight of the entropy bonus.
      optimizer: "sgd" or "adam".
      clip: the global norm that gradients are clipped to, or None.
    """

    batch: int = 8
    length: int = 6
    features: int = 4
    hidden: int = 16
    actions: int = 4
    value_weight: float = 0.5
    entropy_weight: float = 0.01
    optimizer: str = "adam"
    clip: float | None = 0.5


def make_impala(**sizes: Any) -> Example:
    """IMPALA (https://arxiv.org/abs/1802.01561) with an LSTM."""
    config = Sizes(**sizes)
    optimizer = optimizers.make(config.optimizer, clip=config.clip)
    hidden = config.hidden

    def params_init(key: jax.Array) -> Params:
        keys = jax.random.split(key, 4)
        return {
            "torso": layers.mlp_init(keys[0], (config.features, hidden, hidden)),
            "core": layers.lstm_init(keys[1], hidden, hidden),
            "policy": layers.linear_init(keys[2], hidden, config.actions),
            "value": layers.linear_init(keys[3], hidden, 1),
        }

    def loss(params: Params, batch: Tree) -> tuple[jax.Array, Tree]:
        x = jax.nn.relu(layers.mlp(params["torso"], batch["observation"]))
        _, x = layers.unroll(
            lambda state, x_t: layers.lstm(params["core"], state, x_t),
            (batch["hidden"], batch["cell"]),
            x,
        )
        log_probs = jax.nn.log_softmax(layers.linear(params["policy"], x[:, :-1]))
        values = layers.linear(params["value"], x)[..., 0]
        taken = _log_prob(log_probs, batch["action"])
        goals, advantages = jax.vmap(returns.vtrace)(
            values[:, :-1],
            values[:, 1:],
            batch["reward"],
            batch["discount"],
            jnp.exp(lax.stop_gradient(taken) - batch["log_prob"]),
        )
        parts = {
            "policy": -jnp.mean(advantages * taken),
            "value": config.value_weight * jnp.mean(jnp.square(goals - values[:, :-1])),
            "entropy": -config.entropy_weight * jnp.mean(_entropy(log_probs)),
        }
        return parts["policy"] + parts["value"] + parts["entropy"], parts

    def update(state: Tree, batch: Tree) -> tuple[Tree, Tree]:
        (value, parts), grads = jax.value_and_grad(loss, has_aux=True)(state["params"], batch)
        params, opt = optimizer.apply(grads, state["opt"], state["params"])
        return {"params": params, "opt": opt}, {"loss": value, **parts}

    def init(key: jax.Array) -> Tree:
        params = params_init(key)
        return {"params": params, "opt": optimizer.init(params)}

    def make_batch(key: jax.Array) -> Tree:
        data_key, hidden_key, cell_key = jax.random.split(key, 3)
        shape = (config.batch, hidden)
        return {
            **_trajectories(config, data_key),
            "hidden": jnp.tanh(jax.random.normal(hidden_key, shape)),
            "cell": jax.random.normal(cell_key, shape),
        }

    return Example("impala", update, init, make_batch, DATA_AND_MODEL, config)


def _log_prob(log_probs: jax.Array, action: jax.Array) -> jax.Array:
    """log_probs [..., A], action int [...] -> [...]."""
    return jnp.take_along_axis(log_probs, action[..., None], axis=-1)[..., 0]


def _entropy(log_probs: jax.Array) -> jax.Array:
    """log_probs [..., A] -> [...]."""
    return -jnp.sum(jnp.exp(log_probs) * log_probs, axis=-1)


def _trajectories(config: Sizes, key: jax.Array) -> Tree:
    """Trajectories of a policy other than the one that learns; observations have one step more."""
    keys = jax.random.split(key, 5)
    shape = (config.batch, config.length)
    observation_shape = (config.batch, config.length + 1, config.features)
    behaviour = jax.nn.log_softmax(jax.random.normal(keys[4], (*shape, config.actions)))
    action = jax.random.randint(keys[1], shape, 0, config.actions)
    return {
        "observation": jax.random.normal(keys[0], observation_shape),
        "action": action,
        "log_prob": _log_prob(behaviour, action),
        "reward": jax.random.normal(keys[2], shape),
        "discount": 0.99 * jax.random.bernoulli(keys[3], 0.9, shape),
    }
