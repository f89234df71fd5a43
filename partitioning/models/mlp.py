"""An MLP made of pairs of matrices, up and down: the smallest model that every tactic fits."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from . import layers, optimizers
from .example import DATA_AND_MODEL, Example
from .training import initial_state, supervised


@dataclasses.dataclass(frozen=True)
class Sizes:
    """Sizes of the MLP.

    Attributes:
      batch: rows in a batch.
      num_layers: pairs of matrices.
      width: features between pairs, at the input and at the output.
      hidden: features within a pair.
      bias: True if each up matrix has a bias, which makes three parameters a layer.
      optimizer: "sgd" or "adam".
      clip: the global norm that gradients are clipped to, or None.
    """

    batch: int = 16
    num_layers: int = 2
    width: int = 8
    hidden: int = 16
    bias: bool = False
    optimizer: str = "sgd"
    clip: float | None = None


def make(**sizes: Any) -> Example:
    """Least squares on [batch, width] inputs and targets."""
    config = Sizes(**sizes)
    optimizer = optimizers.make(config.optimizer, clip=config.clip)

    def params_init(key: jax.Array) -> layers.Params:
        params = {}
        for i, layer_key in enumerate(jax.random.split(key, config.num_layers)):
            up_key, down_key = jax.random.split(layer_key)
            params[f"layer_{i}"] = {
                "up": layers.linear_init(up_key, config.width, config.hidden, config.bias),
                "down": layers.linear_init(down_key, config.hidden, config.width, bias=False),
            }
        return params

    def loss(params: layers.Params, batch: dict[str, jax.Array]) -> jax.Array:
        x = batch["x"]
        for i in range(config.num_layers):
            layer = params[f"layer_{i}"]
            x = layers.linear(layer["down"], jax.nn.relu(layers.linear(layer["up"], x)))
        return jnp.mean(jnp.square(x - batch["y"]))

    def make_batch(key: jax.Array) -> dict[str, jax.Array]:
        x_key, y_key = jax.random.split(key)
        shape = (config.batch, config.width)
        return {"x": jax.random.normal(x_key, shape), "y": jax.random.normal(y_key, shape)}

    return Example(
        name="mlp",
        update=supervised(loss, optimizer),
        init=initial_state(params_init, optimizer),
        make_batch=make_batch,
        schedules=DATA_AND_MODEL,
        config=config,
    )
