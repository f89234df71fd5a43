"""Value-based update steps: categorical DQN and R2D2."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
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
    """Sizes and constants of both.

    Attributes:
      batch: transitions or sequences in a batch.
      features: features of an observation.
      hidden: features of each hidden layer, and of the recurrent state.
      actions: number of actions.
      atoms: atoms of the categorical distribution.
      limit: the atoms span [-limit, limit].
      burn_in: steps that only warm the recurrent state up.
      length: steps that are learned from.
      n_step: steps before bootstrapping in R2D2.
      period: steps between copies to the target network.
      optimizer: "sgd" or "adam".
      clip: the global norm that gradients are clipped to, or None.
    """

    batch: int = 16
    features: int = 4
    hidden: int = 16
    actions: int = 4
    atoms: int = 11
    limit: float = 5.0
    burn_in: int = 2
    length: int = 5
    n_step: int = 2
    period: int = 2
    optimizer: str = "adam"
    clip: float | None = None


def make_categorical_dqn(**sizes: Any) -> Example:
    """Categorical DQN (https://arxiv.org/abs/1707.06887)."""
    config = Sizes(**sizes)
    net = (config.features, config.hidden, config.hidden, config.actions * config.atoms)
    step = 2 * config.limit / (config.atoms - 1)

    def logits(params: Params, observation: jax.Array) -> jax.Array:
        shape = (*observation.shape[:-1], config.actions, config.atoms)
        return layers.mlp(params, observation).reshape(shape)

    def loss(params: Params, target: Params, batch: Tree) -> tuple[jax.Array, jax.Array]:
        atoms = jnp.linspace(-config.limit, config.limit, config.atoms)
        next_probs = jax.nn.softmax(logits(target, batch["next_observation"]))
        best = jnp.argmax(next_probs @ atoms, axis=-1)
        next_probs = _pick_row(next_probs, best)
        moved = batch["reward"][:, None] + batch["discount"][:, None] * atoms
        moved = jnp.clip(moved, -config.limit, config.limit)
        # Each moved atom's mass goes to its two neighbours, in proportion to closeness.
        closeness = 1 - jnp.abs(moved[:, None, :] - atoms[None, :, None]) / step
        goal = jnp.sum(jnp.clip(closeness, 0, 1) * next_probs[:, None, :], axis=-1)
        log_probs = jax.nn.log_softmax(
            _pick_row(logits(params, batch["observation"]), batch["action"])
        )
        losses = -jnp.sum(lax.stop_gradient(goal) * log_probs, axis=-1)
        return jnp.mean(batch["weight"] * losses), losses

    def params_init(key: jax.Array) -> Params:
        return layers.mlp_init(key, net)

    return _example("categorical_dqn", config, params_init, loss, _transitions(config))


def make_r2d2(**sizes: Any) -> Example:
    """R2D2 (https://openreview.net/forum?id=r1lyTjAqYX): burn-in, rescaled n-step double Q."""
    config = Sizes(**sizes)
    hidden = config.hidden

    def params_init(key: jax.Array) -> Params:
        keys = jax.random.split(key, 4)
        return {
            "torso": layers.linear_init(keys[0], config.features, hidden),
            "core": layers.lstm_init(keys[1], hidden, hidden),
            "value": layers.mlp_init(keys[2], (hidden, hidden, 1)),
            "advantage": layers.mlp_init(keys[3], (hidden, hidden, config.actions)),
        }

    def q_values(params: Params, batch: Tree) -> jax.Array:
        """[B, length + n_step, actions]; no gradient flows through the burn-in."""
        x = jax.nn.relu(layers.linear(params["torso"], batch["observation"]))

        def cell(state: Any, x_t: jax.Array) -> Any:
            return layers.lstm(params["core"], state, x_t)

        start = (batch["hidden"], batch["cell"])
        state, _ = layers.unroll(cell, start, x[:, : config.burn_in])
        _, outputs = layers.unroll(cell, lax.stop_gradient(state), x[:, config.burn_in :])
        value, advantage = (layers.mlp(params[name], outputs) for name in ("value", "advantage"))
        return value + advantage - advantage.mean(-1, keepdims=True)

    def loss(params: Params, target: Params, batch: Tree) -> tuple[jax.Array, jax.Array]:
        steps, n = config.length, config.n_step
        online, late = q_values(params, batch), q_values(target, batch)
        q = _pick(online[:, :steps], batch["action"][:, :steps])
        best = jnp.argmax(online[:, n : steps + n], axis=-1)
        bootstrap = unscale(_pick(late[:, n : steps + n], best))
        returns = bootstrap
        for i in reversed(range(n)):
            window = slice(i, i + steps)
            returns = batch["reward"][:, window] + batch["discount"][:, window] * returns
        error = lax.stop_gradient(rescale(returns)) - q
        size = jnp.abs(error)
        priority = 0.9 * jnp.max(size, axis=1) + 0.1 * jnp.mean(size, axis=1)
        losses = 0.5 * jnp.sum(jnp.square(error), axis=1)
        return jnp.mean(batch["weight"] * losses), priority

    def make_batch(key: jax.Array) -> Tree:
        keys = jax.random.split(key, 7)
        time = config.burn_in + config.length + config.n_step
        learned = (config.batch, config.length + config.n_step)
        state_shape = (config.batch, hidden)
        return {
            "observation": jax.random.normal(keys[0], (config.batch, time, config.features)),
            "action": jax.random.randint(keys[1], learned, 0, config.actions),
            "reward": jax.random.normal(keys[2], learned),
            "discount": 0.99 * jax.random.bernoulli(keys[3], 0.9, learned),
            "weight": jax.random.uniform(keys[4], (config.batch,), minval=0.5),
            "hidden": jnp.tanh(jax.random.normal(keys[5], state_shape)),
            "cell": jax.random.normal(keys[6], state_shape),
        }

    return _example("r2d2", config, params_init, loss, make_batch)


def huber(error: jax.Array, limit: float = 1.0) -> jax.Array:
    """Quadratic up to the limit, linear beyond."""
    size = jnp.abs(error)
    inner = jnp.minimum(size, limit)
    return 0.5 * jnp.square(inner) + limit * (size - inner)


def rescale(x: jax.Array, eps: float = 1e-3) -> jax.Array:
    """The value rescaling of https://arxiv.org/abs/1805.11593."""
    return jnp.sign(x) * (jnp.sqrt(jnp.abs(x) + 1) - 1) + eps * x


def unscale(x: jax.Array, eps: float = 1e-3) -> jax.Array:
    """The inverse of `rescale`."""
    root = (jnp.sqrt(1 + 4 * eps * (jnp.abs(x) + 1 + eps)) - 1) / (2 * eps)
    return jnp.sign(x) * (jnp.square(root) - 1)


def _pick(values: jax.Array, index: jax.Array) -> jax.Array:
    """values [..., A], index int [...] -> [...]."""
    return jnp.take_along_axis(values, index[..., None], axis=-1)[..., 0]


def _pick_row(values: jax.Array, index: jax.Array) -> jax.Array:
    """values [B, A, N], index int [B] -> [B, N]."""
    return jax.vmap(lambda v, i: v[i])(values, index)


def _transitions(config: Sizes) -> Callable[[jax.Array], Tree]:
    def make_batch(key: jax.Array) -> Tree:
        keys = jax.random.split(key, 6)
        shape = (config.batch,)
        observation_shape = (config.batch, config.features)
        return {
            "observation": jax.random.normal(keys[0], observation_shape),
            "action": jax.random.randint(keys[1], shape, 0, config.actions),
            "reward": jax.random.normal(keys[2], shape),
            "discount": 0.99 * jax.random.bernoulli(keys[3], 0.9, shape),
            "next_observation": jax.random.normal(keys[4], observation_shape),
            "weight": jax.random.uniform(keys[5], shape, minval=0.5),
        }

    return make_batch


def _example(
    name: str, config: Sizes, params_init: Any, loss: Any, make_batch: Callable[[jax.Array], Tree]
) -> Example:
    """Descends `loss(params, target, batch) -> (loss [], priorities [B])`."""
    optimizer = optimizers.make(config.optimizer, clip=config.clip)

    def init(key: jax.Array) -> Tree:
        online_key, target_key = jax.random.split(key)
        params = params_init(online_key)
        return {"params": params, "target": params_init(target_key), "opt": optimizer.init(params)}

    def update(state: Tree, batch: Tree) -> tuple[Tree, Tree]:
        (value, priorities), grads = jax.value_and_grad(loss, has_aux=True)(
            state["params"], state["target"], batch
        )
        params, opt = optimizer.apply(grads, state["opt"], state["params"])
        target = optimizers.periodic_update(state["target"], params, opt["count"], config.period)
        metrics = {"loss": value, "priorities": priorities}
        return {"params": params, "target": target, "opt": opt}, metrics

    return Example(
        name=name,
        update=update,
        init=init,
        make_batch=make_batch,
        schedules=DATA_AND_MODEL,
        config=config,
    )
