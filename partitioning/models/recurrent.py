"""Sequence models with a cell under `lax.scan`: an LSTM and a GRU."""

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
    """Sizes of both models.

    Attributes:
      batch: sequences in a batch.
      length: steps in a sequence.
      features: features of an input and of an output.
      hidden: features of the recurrent state.
      optimizer: "sgd" or "adam".
      clip: the global norm that gradients are clipped to, or None.
    """

    batch: int = 8
    length: int = 6
    features: int = 8
    hidden: int = 16
    optimizer: str = "adam"
    clip: float | None = 1.0


def make_lstm(**sizes: Any) -> Example:
    """Regression at every step with an LSTM."""
    return _make("lstm", Sizes(**sizes))


def make_gru(**sizes: Any) -> Example:
    """Regression at every step with a GRU."""
    return _make("gru", Sizes(**sizes))


def _make(name: str, config: Sizes) -> Example:
    optimizer = optimizers.make(config.optimizer, clip=config.clip)
    cell_init = layers.lstm_init if name == "lstm" else layers.gru_init

    def params_init(key: jax.Array) -> layers.Params:
        keys = jax.random.split(key, 3)
        return {
            "encoder": layers.linear_init(keys[0], config.features, config.hidden),
            "cell": cell_init(keys[1], config.hidden, config.hidden),
            "head": layers.linear_init(keys[2], config.hidden, config.features),
        }

    def loss(params: layers.Params, batch: dict[str, jax.Array]) -> jax.Array:
        x = jax.nn.relu(layers.linear(params["encoder"], batch["x"]))
        start: Any = layers.lstm_start(config.batch, config.hidden)
        cell: Any = layers.lstm
        if name == "gru":
            start, cell = start[0], layers.gru
        _, outputs = layers.unroll(lambda s, x_t: cell(params["cell"], s, x_t), start, x)
        return jnp.mean(jnp.square(layers.linear(params["head"], outputs) - batch["y"]))

    def make_batch(key: jax.Array) -> dict[str, jax.Array]:
        x_key, y_key = jax.random.split(key)
        shape = (config.batch, config.length, config.features)
        return {"x": jax.random.normal(x_key, shape), "y": jax.random.normal(y_key, shape)}

    return Example(
        name=name,
        update=supervised(loss, optimizer),
        init=initial_state(params_init, optimizer),
        make_batch=make_batch,
        schedules=DATA_AND_MODEL,
        config=config,
    )
