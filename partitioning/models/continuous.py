"""An update step over continuous actions: MPO.

B: batch, N: sampled actions, A: features of an action.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from . import layers, optimizers
from .example import DATA_AND_MODEL, Example

Tree = Any
Params = layers.Params


@dataclasses.dataclass(frozen=True)
class Sizes:
    """Sizes and constants.

    Attributes:
      batch: transitions in a batch.
      features: features of an observation.
      hidden: features of each hidden layer.
      actions: features of an action.
      samples: actions sampled per state.
      rate: how fast target networks follow.
      epsilon: limit on the KL of the improved policy from the old one.
      epsilon_mean: limit on the KL of the means.
      epsilon_scale: limit on the KL of the scales.
      optimizer: "sgd" or "adam".
    """

    batch: int = 16
    features: int = 4
    hidden: int = 16
    actions: int = 2
    samples: int = 4
    rate: float = 0.01
    epsilon: float = 0.1
    epsilon_mean: float = 1e-2
    epsilon_scale: float = 1e-4
    optimizer: str = "adam"


def _policy(params: Params, observation: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Mean and scale, each [..., A]."""
    mean, log_scale = jnp.split(layers.mlp(params, observation), 2, axis=-1)
    return mean, jnp.exp(jnp.clip(log_scale, -5.0, 2.0))


def _critic(params: Params, observation: jax.Array, action: jax.Array) -> jax.Array:
    return layers.mlp(params, jnp.concatenate([observation, action], axis=-1))[..., 0]


def _normal_log_prob(x: jax.Array, mean: jax.Array, scale: jax.Array) -> jax.Array:
    z = (x - mean) / scale
    return jnp.sum(-0.5 * jnp.square(z) - jnp.log(scale) - 0.5 * jnp.log(2 * jnp.pi), axis=-1)


def make_mpo(**sizes: Any) -> Example:
    """MPO (https://arxiv.org/abs/1806.06920) with separate KL limits on mean and scale."""
    config = Sizes(**sizes)
    optimizer = optimizers.make(config.optimizer)

    def params_init(key: jax.Array) -> Params:
        keys = jax.random.split(key)
        hidden = (config.hidden, config.hidden)
        critic = (config.features + config.actions, *hidden, 1)
        return {
            "policy": layers.mlp_init(keys[0], (config.features, *hidden, 2 * config.actions)),
            "critic": layers.mlp_init(keys[1], critic),
            "duals": {name: jnp.asarray(0.5) for name in ("temperature", "mean", "scale")},
        }

    def improve(params: Params, target: Params, batch: Tree, key: jax.Array) -> jax.Array:
        """Weighs sampled actions by value, and moves the policy towards them within limits; []."""
        old_mean, old_scale = _policy(target["policy"], batch["observation"])
        noise = jax.random.normal(key, (config.samples, *old_mean.shape))
        actions = lax.stop_gradient(old_mean + old_scale * noise)  # [N, B, A]
        values = jax.vmap(_critic, in_axes=(None, None, 0))(
            target["critic"], batch["observation"], actions
        )  # [N, B]
        duals = jax.tree_util.tree_map(jax.nn.softplus, params["duals"])
        scaled = values / duals["temperature"]
        weights = lax.stop_gradient(jax.nn.softmax(scaled, axis=0))
        average = jnp.mean(jax.scipy.special.logsumexp(scaled, axis=0))
        spread = config.epsilon + average - jnp.log(float(config.samples))
        temperature = duals["temperature"] * spread

        mean, scale = _policy(params["policy"], batch["observation"])
        fit = _normal_log_prob(actions, mean, old_scale) + _normal_log_prob(
            actions, old_mean, scale
        )
        policy = -jnp.mean(jnp.sum(weights * fit, axis=0))
        kl_mean = jnp.mean(jnp.sum(0.5 * jnp.square((mean - old_mean) / old_scale), axis=-1))
        ratio = old_scale / scale
        kl_scale = jnp.mean(jnp.sum(jnp.log(1 / ratio) + 0.5 * jnp.square(ratio) - 0.5, axis=-1))
        total = temperature + policy
        for kl, name, limit in (
            (kl_mean, "mean", config.epsilon_mean),
            (kl_scale, "scale", config.epsilon_scale),
        ):
            total += lax.stop_gradient(duals[name]) * kl
            total += duals[name] * lax.stop_gradient(limit - kl)
        return total

    def loss(
        params: Params, target: Params, batch: Tree, keys: jax.Array
    ) -> tuple[jax.Array, Tree]:
        mean, scale = _policy(target["policy"], batch["next_observation"])
        following = mean + scale * jax.random.normal(keys[0], mean.shape)
        late = _critic(target["critic"], batch["next_observation"], following)
        goal = lax.stop_gradient(batch["reward"] + batch["discount"] * late)
        now = _critic(params["critic"], batch["observation"], batch["action"])
        critic = 0.5 * jnp.mean(jnp.square(goal - now))
        policy = improve(params, target, batch, keys[1])
        return critic + policy, {"critic": critic, "policy": policy}

    def update(state: Tree, batch: Tree) -> tuple[Tree, Tree]:
        key, *keys = jax.random.split(state["key"], 3)
        (_, parts), grads = jax.value_and_grad(loss, has_aux=True)(
            state["params"], state["target"], batch, jnp.stack(keys)
        )
        params, opt = optimizer.apply(grads, state["opt"], state["params"])
        online = {name: params[name] for name in state["target"]}
        target = optimizers.soft_update(state["target"], online, config.rate)
        return {"params": params, "target": target, "opt": opt, "key": key}, parts

    def init(key: jax.Array) -> Tree:
        params = params_init(key)
        target = {name: params[name] for name in ("policy", "critic")}
        return {
            "params": params,
            "target": jax.tree_util.tree_map(lambda x: 0.9 * x, target),
            "opt": optimizer.init(params),
            "key": jax.random.PRNGKey(1),
        }

    return Example("mpo", update, init, _transitions(config), DATA_AND_MODEL, config)


def _transitions(config: Sizes) -> Any:
    def make_batch(key: jax.Array) -> Tree:
        keys = jax.random.split(key, 5)
        shape = (config.batch,)
        observation_shape = (config.batch, config.features)
        return {
            "observation": jax.random.normal(keys[0], observation_shape),
            "action": jnp.tanh(jax.random.normal(keys[1], (config.batch, config.actions))),
            "reward": jax.random.normal(keys[2], shape),
            "discount": 0.99 * jax.random.bernoulli(keys[3], 0.9, shape),
            "next_observation": jax.random.normal(keys[4], observation_shape),
        }

    return make_batch
