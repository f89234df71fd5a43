"""A mixture of experts with top-k routing and a capacity per expert (https://arxiv.org/abs/2006.16668)."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import jax
import jax.numpy as jnp

from . import layers, optimizers
from .example import DATA_AND_MODEL, Example
from .training import initial_state, supervised


@dataclasses.dataclass(frozen=True)
class Sizes:
    """Sizes of the model.

    Attributes:
      batch: groups of tokens; each group routes on its own.
      length: tokens in a group.
      width: features of a token.
      hidden: features within an expert.
      experts: number of experts.
      top_k: experts that each token goes to.
      slack: capacity of an expert over its fair share of tokens.
      balance: weight of the load-balancing loss.
      optimizer: "sgd" or "adam".
      clip: the global norm that gradients are clipped to, or None.
    """

    batch: int = 8
    length: int = 8
    width: int = 8
    hidden: int = 16
    experts: int = 4
    top_k: int = 2
    slack: float = 1.25
    balance: float = 0.01
    optimizer: str = "adam"
    clip: float | None = None

    @property
    def capacity(self) -> int:
        return math.ceil(self.length * self.top_k * self.slack / self.experts)


def make(**sizes: Any) -> Example:
    """Regression at every token. G: groups, T: tokens, K: choices, E: experts, C: capacity."""
    config = Sizes(**sizes)
    optimizer = optimizers.make(config.optimizer, clip=config.clip)

    def params_init(key: jax.Array) -> layers.Params:
        keys = jax.random.split(key, 3)
        shape = (config.experts, config.width, config.hidden)
        return {
            "router": layers.linear_init(keys[0], config.width, config.experts, bias=False),
            "up": jax.random.normal(keys[1], shape) / math.sqrt(config.width),
            "down": jax.random.normal(keys[2], (shape[0], shape[2], shape[1]))
            / math.sqrt(config.hidden),
        }

    def loss(params: layers.Params, batch: dict[str, jax.Array]) -> jax.Array:
        x = batch["x"]
        probabilities = jax.nn.softmax(layers.linear(params["router"], x))
        combine, chosen = _route(config, probabilities)
        dispatch = (combine > 0).astype(x.dtype)
        inputs = jnp.einsum("gtec,gtd->egcd", dispatch, x)
        h = jax.nn.relu(jnp.einsum("egcd,edf->egcf", inputs, params["up"]))
        outputs = jnp.einsum("egcf,efd->egcd", h, params["down"])
        y = x + jnp.einsum("gtec,egcd->gtd", combine, outputs)
        # Mean probability times share of first choices is least when both are even.
        balance = config.experts * jnp.sum(probabilities.mean((0, 1)) * chosen.mean((0, 1)))
        return jnp.mean(jnp.square(y - batch["y"])) + config.balance * balance

    def make_batch(key: jax.Array) -> dict[str, jax.Array]:
        x_key, y_key = jax.random.split(key)
        shape = (config.batch, config.length, config.width)
        return {"x": jax.random.normal(x_key, shape), "y": jax.random.normal(y_key, shape)}

    return Example(
        name="experts",
        update=supervised(loss, optimizer),
        init=initial_state(params_init, optimizer),
        make_batch=make_batch,
        schedules=(
            *DATA_AND_MODEL,
            "batch:data,expert:model",
            "batch:data,expert:model,zero3:data",
        ),
        config=config,
    )


def _route(config: Sizes, probabilities: jax.Array) -> tuple[jax.Array, jax.Array]:
    """probabilities [G, T, E] -> combine weights [G, T, E, C], first choices one-hot [G, T, E].

    A token beyond an expert's capacity is dropped there: its weight is zero.
    """
    groups, length, _ = probabilities.shape
    weights, choices = jax.lax.top_k(probabilities, config.top_k)
    weights = weights / jnp.sum(weights, axis=-1, keepdims=True)
    one_hot = jax.nn.one_hot(choices, config.experts)  # [G, T, K, E]
    # First choices of all tokens queue before any second choice.
    queue = jnp.swapaxes(one_hot, 1, 2).reshape(groups, -1, config.experts)
    position = (jnp.cumsum(queue, axis=1) - 1) * queue
    position = position.reshape(groups, config.top_k, length, config.experts)
    position = jnp.sum(jnp.swapaxes(position, 1, 2), axis=-1).astype(jnp.int32)  # [G, T, K]
    slot = jax.nn.one_hot(position, config.capacity)  # zero where beyond the capacity
    combine = jnp.einsum("gtk,gtke,gtkc->gtec", weights, one_hot, slot)
    return combine, one_hot[:, :, 0]
