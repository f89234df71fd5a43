"""Convolutional models: a residual classifier with pooling, and a small U-Net."""

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
      batch: images in a batch.
      size: height and width, a multiple of 4.
      channels: input channels.
      width: features of the first block, a multiple of `groups`; doubled by the second.
      groups: groups of the grouped convolution within each residual block.
      classes: output classes (residual net) or output channels (U-Net).
      optimizer: "sgd" or "adam".
      clip: the global norm that gradients are clipped to, or None.
    """

    batch: int = 8
    size: int = 8
    channels: int = 3
    width: int = 8
    groups: int = 2
    classes: int = 4
    optimizer: str = "adam"
    clip: float | None = None


def make_residual_net(**sizes: Any) -> Example:
    """Classification: two residual blocks, max pooling between them, average pooling at the end."""
    config = Sizes(**sizes)
    width, groups = config.width, config.groups

    def block_init(key: jax.Array, n_in: int, n_out: int) -> layers.Params:
        keys = jax.random.split(key, 3)
        return {
            "conv_1": layers.conv_init(keys[0], n_in, n_out),
            "norm": layers.layer_norm_init(n_out),
            "conv_2": layers.conv_init(keys[1], n_out, n_out, groups=groups),
            "skip": layers.conv_init(keys[2], n_in, n_out, size=1),
        }

    def block(params: layers.Params, x: jax.Array) -> jax.Array:
        h = jax.nn.relu(layers.layer_norm(params["norm"], layers.conv(params["conv_1"], x)))
        h = layers.conv(params["conv_2"], h, groups=groups)
        return jax.nn.relu(h + layers.conv(params["skip"], x))

    def params_init(key: jax.Array) -> layers.Params:
        keys = jax.random.split(key, 4)
        return {
            "stem": layers.conv_init(keys[0], config.channels, width),
            "block_1": block_init(keys[1], width, width),
            "block_2": block_init(keys[2], width, 2 * width),
            "head": layers.linear_init(keys[3], 2 * width, config.classes),
        }

    def loss(params: layers.Params, batch: dict[str, jax.Array]) -> jax.Array:
        x = jax.nn.relu(layers.conv(params["stem"], batch["image"]))
        x = layers.max_pool(block(params["block_1"], x))
        x = layers.avg_pool(block(params["block_2"], x)).mean((1, 2))
        log_probs = jax.nn.log_softmax(layers.linear(params["head"], x))
        return -jnp.mean(jnp.take_along_axis(log_probs, batch["label"][:, None], axis=-1))

    def make_batch(key: jax.Array) -> dict[str, jax.Array]:
        image_key, label_key = jax.random.split(key)
        shape = (config.batch, config.size, config.size, config.channels)
        labels = jax.random.randint(label_key, (config.batch,), 0, config.classes)
        return {"image": jax.random.normal(image_key, shape), "label": labels}

    return _example("residual_net", config, params_init, loss, make_batch)


def make_unet(**sizes: Any) -> Example:
    """Image to image: one level down and up again, with the skip concatenated."""
    config = Sizes(**sizes)
    width = config.width

    def params_init(key: jax.Array) -> layers.Params:
        keys = jax.random.split(key, 5)
        return {
            "enter": layers.conv_init(keys[0], config.channels, width),
            "down": layers.conv_init(keys[1], width, 2 * width),
            "middle": layers.conv_init(keys[2], 2 * width, 2 * width),
            "up": layers.conv_init(keys[3], 2 * width, width),
            "exit": layers.conv_init(keys[4], 2 * width, config.classes),
        }

    def loss(params: layers.Params, batch: dict[str, jax.Array]) -> jax.Array:
        skip = jax.nn.silu(layers.conv(params["enter"], batch["image"]))
        x = jax.nn.silu(layers.conv(params["down"], skip, stride=2))
        x = x + jax.nn.silu(layers.conv(params["middle"], x))
        x = jax.nn.silu(layers.conv_transpose(params["up"], x))
        x = layers.conv(params["exit"], jnp.concatenate([skip, x], axis=-1))
        return jnp.mean(jnp.square(x - batch["target"]))

    def make_batch(key: jax.Array) -> dict[str, jax.Array]:
        image_key, target_key = jax.random.split(key)
        shape = (config.batch, config.size, config.size)
        return {
            "image": jax.random.normal(image_key, (*shape, config.channels)),
            "target": jax.random.normal(target_key, (*shape, config.classes)),
        }

    return _example("unet", config, params_init, loss, make_batch)


def _example(name: str, config: Sizes, params_init: Any, loss: Any, make_batch: Any) -> Example:
    optimizer = optimizers.make(config.optimizer, clip=config.clip)
    return Example(
        name=name,
        update=supervised(loss, optimizer),
        init=initial_state(params_init, optimizer),
        make_batch=make_batch,
        schedules=DATA_AND_MODEL,
        config=config,
    )
