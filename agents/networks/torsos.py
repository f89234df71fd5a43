"""Torsos: observations of any kind to features. To be called inside a haiku transform."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import haiku as hk
import jax
import jax.numpy as jnp
from dm_env import specs

from ...environments import action_masks
from ...environments.specs import describe
from . import images, own

Nest = Any


def is_image(spec: Nest) -> bool:
    """True if observations are one image of bytes, at least 36 pixels a side (see `images`)."""
    return isinstance(spec, specs.Array) and images.kind(spec) == "image"


def flatten(spec: Nest) -> Callable[[Nest], jax.Array]:
    """A function from nests of observations [B, ...] to float32 vectors [B, D].

    Discrete parts become one-hot, bytes are scaled to [0, 1], the rest is taken as it is.
    """

    def apply(observation: Nest) -> jax.Array:
        return _joined(jax.tree.map(_flat, spec, observation))

    return apply


def _flat(part: specs.Array, x: jax.Array) -> jax.Array:
    """One array of a nest [B, *shape] as vectors [B, D]."""
    if isinstance(part, specs.DiscreteArray):
        return jax.nn.one_hot(x, part.num_values)
    scaled = x / 255.0 if part.dtype == "uint8" else x
    return jnp.reshape(scaled.astype(jnp.float32), (x.shape[0], math.prod(part.shape)))


def _joined(parts: Nest) -> jax.Array:
    """All vectors [B, ...] of a nest side by side."""
    leaves = jax.tree.leaves(parts)
    return jnp.concatenate(leaves, axis=-1) if len(leaves) > 1 else leaves[0]


class NatureTorso(hk.Module):
    """The convolutions of Mnih et al. (2015), https://doi.org/10.1038/nature14236."""

    def __init__(self, width: int = 1, dtype: Any = jnp.float32, name: str = "nature_torso"):
        super().__init__(name)
        self._width, self._dtype = width, dtype

    def __call__(self, image: jax.Array) -> jax.Array:
        """[B, H, W, C] uint8 to features [B, 512 width] after the last rectifier."""
        x = image.astype(self._dtype) / 255.0
        for channels, kernel, stride in ((32, 8, 4), (64, 4, 2), (64, 3, 1)):
            layer = hk.Conv2D(self._width * channels, kernel, stride, padding="VALID")
            x = jax.nn.relu(layer(x))
        return jax.nn.relu(hk.Linear(self._width * 512)(hk.Flatten()(x)))


class ResidualTorso(hk.Module):
    """The deep residual network of IMPALA: 15 convolutions.

    Espeholt et al. (2018), https://arxiv.org/abs/1802.01561, figure 3, without the LSTM.
    """

    def __init__(self, width: int = 1, dtype: Any = jnp.float32, name: str = "residual_torso"):
        super().__init__(name)
        self._width, self._dtype = width, dtype

    def __call__(self, image: jax.Array) -> jax.Array:
        """[B, H, W, C], bytes or numbers, to features [B, 256 width] after the last rectifier."""
        x = image.astype(self._dtype) / (255.0 if image.dtype == jnp.uint8 else 1.0)
        for section, channels in enumerate((16, 32, 32)):
            name = f"section_{section}"
            x = hk.Conv2D(self._width * channels, 3, name=name)(x)
            x = hk.max_pool(x, (3, 3, 1), (2, 2, 1), "SAME")
            for block in range(2):
                y = x
                for layer in range(2):
                    convolution = hk.Conv2D(
                        self._width * channels, 3, name=f"{name}_block_{block}_{layer}"
                    )
                    y = convolution(jax.nn.relu(y))
                x += y
        return jax.nn.relu(hk.Linear(self._width * 256)(hk.Flatten()(jax.nn.relu(x))))


class GridTorso(hk.Module):
    """The convolution of Young and Tian (2019), https://arxiv.org/abs/1903.03176, section 3."""

    def __init__(self, width: int = 1, dtype: Any = jnp.float32, name: str = "grid_torso"):
        super().__init__(name)
        self._width, self._dtype = width, dtype

    def __call__(self, grid: jax.Array) -> jax.Array:
        """[B, H, W, C], bytes or numbers, to features [B, (H - 2) (W - 2) 16 width]."""
        x = grid.astype(self._dtype) / (255.0 if grid.dtype == jnp.uint8 else 1.0)
        return hk.Flatten()(jax.nn.relu(hk.Conv2D(self._width * 16, 3, padding="VALID")(x)))


def convolves(spec: Nest, torso: str = "auto") -> bool:
    """True if observations, or a part of them, go through convolutions.

    With a torso of the user's own: if they would with "auto".

    Raises:
      ValueError: where the torso is one of convolutions and observations are nothing for it.
    """
    leaves = jax.tree.leaves(action_masks.visible(spec))
    kinds = [images.kind(leaf) for leaf in leaves]
    boards = any(kinds) or any(len(leaf.shape) == 3 for leaf in leaves)
    if (torso == "nature" and "image" not in kinds) or (torso == "residual" and not boards):
        least = "uint8 of at least 36 x 36" if torso == "nature" else "of three dimensions"
        raise ValueError(
            f"torso is {torso}, which is for images ({least}), and this environment's "
            f"observations are {describe(spec)}; leave torso at auto."
        )
    return torso == "residual" or any(kinds)


def make_torso(
    spec: Nest,
    hidden_sizes: Sequence[int],
    activation: Callable[[jax.Array], jax.Array] = jax.nn.relu,
    w_init: hk.initializers.Initializer | None = None,
    *,
    torso: str = "auto",
    width: int = 1,
    dtype: Any = jnp.float32,
) -> Callable[[Nest], jax.Array]:
    """Observations [B, ...] to features [B, D]; a mask of legal actions is none of them.

    An image goes through convolutions, all else through an MLP of `hidden_sizes`, grids through one
    convolution before it; where there are no sizes, features are what came to the MLP. In a nest
    each image and grid has convolutions of its own, whose features the MLP gets beside the rest.

    Args:
      spec: of the observations.
      hidden_sizes: units of the MLP's layers.
      activation: of the MLP.
      w_init: of the MLP.
      torso: "auto"; "nature" or "residual", which convolutions; or MODULE:NAME of the user's own
        (`own`), which stands in place of convolutions and MLP, but for `dtype`.
      width: times their published channels.
      dtype: that all is computed in, and that the features have.

    Raises:
      ValueError: where observations are nothing for the torso.
    """
    if ":" in torso:
        return own.make(torso, spec, dtype)
    spec, see = action_masks.visible(spec), action_masks.visible
    convolves(spec, torso)  # Raises what is to be raised before anything is traced.

    def features(part: specs.Array, x: jax.Array) -> jax.Array:
        module = _convolutions(part, torso)
        return _flat(part, x) if module is None else module(width, dtype)(_arranged(part, x))

    if isinstance(spec, specs.Array) and _convolutions(spec, torso) not in (None, GridTorso):
        return lambda observation: features(spec, see(observation))

    def apply(observation: Nest) -> jax.Array:
        x = _joined(jax.tree.map(features, spec, see(observation)))
        mlp = hk.nets.MLP(hidden_sizes, w_init=w_init, activation=activation, activate_final=True)
        return mlp(x.astype(dtype))

    return apply


def _convolutions(spec: specs.Array, torso: str) -> Any:
    """Returns the convolutions of one array; None: it has none."""
    kind = images.kind(spec)
    if torso == "residual" and (kind is not None or len(spec.shape) == 3):
        return ResidualTorso
    return {"image": NatureTorso, "grid": GridTorso, None: None}[kind]


def _arranged(spec: specs.Array, x: jax.Array) -> jax.Array:
    """Arrays [B, *shape] as [B, H, W, C]; boards too small to be told from other arrays stay."""
    return x if images.kind(spec) is None else images.arranged(spec, x)
