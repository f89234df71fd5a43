"""Networks made from an environment's spec. Haiku inside, pure functions outside."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import haiku as hk
import jax
import jax.numpy as jnp
from dm_env import specs

from ..environments.specs import EnvironmentSpec

Nest = Any


class Network(NamedTuple):
    """A pair of pure functions: `init(key) -> params` and `apply(params, observation, ...)`.

    `apply` takes observations with a leading batch dimension [B, ...].
    """

    init: Callable[[jax.Array], Nest]
    apply: Callable[..., Any]


def dummy(spec: Nest, *leading: int) -> Nest:
    """Zeros of a spec, with leading dimensions."""
    return jax.tree.map(lambda s: jnp.zeros((*leading, *s.shape), s.dtype), spec)


def from_haiku(module: Callable[..., Any], *inputs: Nest) -> Network:
    """A network from a function that calls haiku modules and draws no random numbers."""
    transformed: Any = hk.without_apply_rng(hk.transform(module))
    return Network(lambda key: transformed.init(key, *inputs), transformed.apply)


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
    """Observations [B, ...] to features [B, D], to be called inside a haiku transform.

    Images go through the convolutions of `NatureTorso`, all else through an MLP of `hidden_sizes`.
    """
    if is_image(spec):
        return lambda observation: NatureTorso()(observation)
    to_vector = flatten(spec)
    return lambda observation: hk.nets.MLP(
        hidden_sizes, w_init=w_init, activation=activation, activate_final=True
    )(to_vector(observation))


def require_discrete(agent: str, spec: EnvironmentSpec) -> int:
    """The number of actions.

    Raises:
      ValueError: where actions are anything but one discrete choice.
    """
    if isinstance(spec.actions, specs.DiscreteArray):
        return int(spec.actions.num_values)
    raise ValueError(
        f"{agent} drives one discrete action; this environment's actions are "
        f"{describe(spec.actions)}."
    )


def describe(spec: Nest) -> str:
    """One line about a nest of specs, for messages."""
    if isinstance(spec, specs.DiscreteArray):
        return f"one of {spec.num_values}"
    if isinstance(spec, specs.Array):
        kind = "bounded " if isinstance(spec, specs.BoundedArray) else ""
        return f"{kind}{spec.dtype}{list(spec.shape)}"
    leaves = ", ".join(describe(leaf) for leaf in jax.tree.leaves(spec))
    return f"a {type(spec).__name__} of ({leaves})"
