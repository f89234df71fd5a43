"""Networks made from an environment's spec. Haiku inside, pure functions outside."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import haiku as hk
import jax
import jax.numpy as jnp
from dm_env import specs

from ...environments.specs import EnvironmentSpec

Nest = Any

_COLUMNS = range(32, 257) if jax.__version_info__ < (0, 7) else range(0)
"""Sizes of the batches that are computed as columns, see `Linear`."""


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


class Linear(hk.Linear):
    """`hk.Linear`, with its parameters, of observations [B, D] that may be computed as columns.

    XLA of jax 0.6 is slow on CPU at products of the backward pass: one of 64 x 256 x 256 takes 142
    us where its right operand is transposed, against 67 us forward, and those of a head of two
    values 46 us in all, against 13. With observations as columns no product is of that kind: a
    gradient step of DQN takes 458 us instead of 522 (two cores). Columns are slower in small
    batches, up to tenfold, in large ones, and with later versions.
    """

    def __call__(self, x: jax.Array, *, precision: Any = None) -> jax.Array:
        """[B, D] to [B, N]."""
        if x.ndim == 2 and x.shape[0] in _COLUMNS:
            return self.on_columns(x.T, precision).T
        return super().__call__(x, precision=precision)

    def on_columns(self, x: jax.Array, precision: Any = None) -> jax.Array:
        """[D, B] to [N, B]."""
        in_size, out_size = x.shape[0], self.output_size
        w_init = self.w_init or hk.initializers.TruncatedNormal(in_size**-0.5)
        w = hk.get_parameter("w", (in_size, out_size), x.dtype, init=w_init)
        b = hk.get_parameter("b", (out_size,), x.dtype, init=self.b_init)
        return jax.lax.dot_general(w, x, (((0,), (0,)), ((), ())), precision) + b[:, None]


class MLP(hk.Module):
    """`hk.nets.MLP` with its parameters: [B, D] to [B, output_sizes[-1]], of `Linear`s.

    Columns stay columns from layer to layer: XLA does not cancel two transpositions with an
    activation between them, and a gradient step of DQN would take 520 us.
    """

    def __init__(
        self,
        output_sizes: Sequence[int],
        w_init: hk.initializers.Initializer | None = None,
        activation: Callable[[jax.Array], jax.Array] = jax.nn.relu,
        activate_final: bool = False,
        name: str = "mlp",
    ):
        super().__init__(name)
        self._activation = activation
        self._num_active = len(output_sizes) - (not activate_final)
        self._layers = [
            Linear(size, w_init=w_init, name=f"linear_{i}") for i, size in enumerate(output_sizes)
        ]

    def __call__(self, x: jax.Array) -> jax.Array:
        as_columns = x.shape[0] in _COLUMNS
        x = x.T if as_columns else x
        for i, layer in enumerate(self._layers):
            x = layer.on_columns(x) if as_columns else layer(x)
            x = self._activation(x) if i < self._num_active else x
        return x.T if as_columns else x


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
    return lambda observation: MLP(
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
