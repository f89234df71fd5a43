"""Torsos: observations of any kind to features. To be called inside a haiku transform."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import haiku as hk
import jax
import jax.numpy as jnp
from dm_env import specs

from .columns import MLP

Nest = Any


def is_image(spec: Nest) -> bool:
    """Whether observations are one image: three dimensions of bytes, at least 36 pixels a side."""
    return isinstance(spec, specs.Array) and (
        len(spec.shape) == 3 and spec.dtype == "uint8" and min(spec.shape[:2]) >= 36
    )


def flatten(spec: Nest) -> Callable[[Nest], jax.Array]:
    """A function from nests of observations [B, ...] to float32 vectors [B, D].

    Discrete parts become one-hot, bytes are scaled to [0, 1], the rest is taken as it is.
    """

    def flatten_one(part: specs.Array, x: jax.Array) -> jax.Array:
        if isinstance(part, specs.DiscreteArray):
            return jax.nn.one_hot(x, part.num_values)
        scaled = x / 255.0 if part.dtype == "uint8" else x
        return jnp.reshape(scaled.astype(jnp.float32), (x.shape[0], math.prod(part.shape)))

    def apply(observation: Nest) -> jax.Array:
        parts = jax.tree.leaves(jax.tree.map(flatten_one, spec, observation))
        return jnp.concatenate(parts, axis=-1) if len(parts) > 1 else parts[0]

    return apply


class NatureTorso(hk.Module):
    """The convolutions of Mnih et al. (2015), https://doi.org/10.1038/nature14236."""

    def __call__(self, image: jax.Array) -> jax.Array:
        """[B, H, W, C] uint8 to features [B, 512] after the last rectifier."""
        x = image.astype(jnp.float32) / 255.0
        for channels, kernel, stride in ((32, 8, 4), (64, 4, 2), (64, 3, 1)):
            x = jax.nn.relu(hk.Conv2D(channels, kernel, stride, padding="VALID")(x))
        return jax.nn.relu(hk.Linear(512)(hk.Flatten()(x)))


def make_torso(
    spec: Nest,
    hidden_sizes: Sequence[int],
    activation: Callable[[jax.Array], jax.Array] = jax.nn.relu,
    w_init: hk.initializers.Initializer | None = None,
) -> Callable[[Nest], jax.Array]:
    """Observations [B, ...] to features [B, D].

    Images go through the convolutions of `NatureTorso`, all else through an MLP of `hidden_sizes`;
    where there are none, features are the observation's numbers.
    """
    if is_image(spec):
        return lambda observation: NatureTorso()(observation)
    to_vector = flatten(spec)
    return lambda observation: MLP(
        hidden_sizes, w_init=w_init, activation=activation, activate_final=True
    )(to_vector(observation))
