"""Layers whose features and weights lie on unit spheres: SimbaV2's.

Lee et al. (2025), https://arxiv.org/abs/2502.15280. What such layers learn are directions; their
scales are parameters of their own. Weights begin with norm 1, and `learning.optimizers` bring them
back to it in every gradient step, by the name `UNIT`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import haiku as hk
import jax
import jax.numpy as jnp

Nest = Any
UNIT = "unit_w"
"""Name of parameters [..., inputs, outputs] that have norm 1 over their inputs."""
_SHIFT = 3.0
"""Of the number beside the inputs, by which their norm is told apart when it has been taken out."""
_EXPANSION = 4


def unit(x: jax.Array, axis: int = -1) -> jax.Array:
    """`x` over its norm along an axis; 0 stays 0, with a gradient that is finite."""
    return x * jax.lax.rsqrt(jnp.sum(x * x, axis, keepdims=True) + 1e-12)


def project_steps(steps: Nest, params: Nest) -> Nest:
    """Steps from parameters, those of `UNIT` bent so that they end with norm 1; others as they
    are."""

    def each(path: Any, step: Any, x: Any) -> Any:
        return unit(x + step, axis=-2) - x if _is_unit(path) else step

    return jax.tree_util.tree_map_with_path(each, steps, params)


def has_units(params: Nest) -> bool:
    """True if any of the parameters is named `UNIT`."""
    return any(_is_unit(path) for path, _ in jax.tree_util.tree_leaves_with_path(params))


def _is_unit(path: Any) -> bool:
    return bool(path) and getattr(path[-1], "key", None) == UNIT


class UnitLinear(hk.Module):
    """Projections of features [B, D] onto directions: [B, size]."""

    def __init__(self, size: int, name: str = "unit_linear"):
        super().__init__(name)
        self._size = size

    def __call__(self, x: jax.Array) -> jax.Array:
        def init(shape: Sequence[int], dtype: Any) -> jax.Array:
            return unit(hk.initializers.RandomNormal()(shape, dtype), axis=0)

        return x @ hk.get_parameter(UNIT, (x.shape[-1], self._size), x.dtype, init)


class LearnedScale(hk.Module):
    """A learned factor for each feature, whose steps are those of a parameter of another size."""

    def __init__(self, value: float, step: float, name: str = "scale"):
        """Takes the factors at first, and how far they go where a parameter of Adam goes 1."""
        super().__init__(name)
        self._value, self._step = value, step

    def __call__(self, x: jax.Array) -> jax.Array:
        """[B, D] to [B, D]."""
        init = hk.initializers.Constant(self._step)
        scale = hk.get_parameter("scale", x.shape[-1:], x.dtype, init)
        return x * scale * (self._value / self._step)


def layers(
    x: jax.Array,
    sizes: Sequence[int],
    outputs: int,
    activation: Callable[[jax.Array], jax.Array],
    drop: Callable[[jax.Array], jax.Array],
) -> jax.Array:
    """Features [B, D] to numbers [B, outputs], through blocks that go part of a way on the sphere.

    Sections 4.1 to 4.3: an embedding, a block of two layers for each of the sizes, the first four
    times as wide, and a head. Between a block's input and result a learned part of the way is gone,
    each feature's own.

    Args:
      x: [B, D]; statistics of about mean 0 and deviation 1 are expected (`normalized+`).
      sizes: of the blocks, equal.
      outputs: how many.
      activation: within the blocks.
      drop: leaves out units of the wide layers.
    """
    width, root = sizes[0], math.sqrt(2.0 / sizes[0])
    x = jnp.concatenate([x, jnp.full_like(x[..., :1], _SHIFT)], axis=-1)
    x = unit(LearnedScale(root, root)(UnitLinear(width)(unit(x))))
    wide_root = root / math.sqrt(_EXPANSION)
    for _ in sizes:
        wide = LearnedScale(wide_root, wide_root)(UnitLinear(_EXPANSION * width)(x))
        there = unit(UnitLinear(width)(activation(drop(wide))))
        part = LearnedScale(1.0 / (len(sizes) + 1), 1.0 / math.sqrt(width))
        x = unit(x + part(there - x))
    x = LearnedScale(1.0, 1.0)(UnitLinear(width)(x))
    return UnitLinear(outputs)(x) + hk.get_parameter("bias", (outputs,), x.dtype, jnp.zeros)
