"""A part of what jax's default generator draws, with the values that the whole has there."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend.random import threefry2x32_p

_WORD = 2**32


def draw(
    keys: jax.Array,
    shape: Sequence[int],
    starts: Sequence[Any],
    sizes: Sequence[int],
    bit_width: int | None,
) -> jax.Array:
    """A block of what each key draws: jax's partitionable Threefry (Salmon et al., 2011).

    Each number is made of its key and of its place in the whole, a number of 64 bits.

    Args:
      keys: typed keys of "threefry2x32" [...].
      shape: what each key would draw whole.
      starts: for each dimension, an integer scalar: where the block begins.
      sizes: for each dimension, how long it is.
      bit_width: of the unsigned integers drawn: 8, 16, 32 or 64; None for new keys.

    Returns:
      Integers or keys [*keys.shape, *sizes].
    """
    high, low = _places(shape, starts, sizes)
    words = jax.random.key_data(keys)
    whole = (*keys.shape, *sizes)

    def wide(x: jax.Array, dims: range) -> jax.Array:
        return lax.broadcast_in_dim(x, whole, tuple(dims))

    batch, drawn = range(keys.ndim), range(keys.ndim, len(whole))
    first, second = threefry2x32_p.bind(
        wide(words[..., 0], batch), wide(words[..., 1], batch), wide(high, drawn), wide(low, drawn)
    )
    if bit_width is None:
        words = jnp.stack([first, second], axis=-1)
        return jax.random.wrap_key_data(words, impl=jax.random.key_impl(keys))
    if bit_width == 64:
        first, second = (x.astype(np.uint64) for x in (first, second))
        return (first << np.uint64(32)) | second
    return (first ^ second).astype(f"uint{bit_width}")


def _places(
    shape: Sequence[int], starts: Sequence[Any], sizes: Sequence[int]
) -> tuple[jax.Array, jax.Array]:
    """The place of each number of a block in the whole, as high and low words [*sizes]."""
    high = low = jnp.zeros(tuple(sizes), np.uint32)
    narrow = math.prod(shape) <= _WORD
    for dim, start in enumerate(starts):
        stride = math.prod(shape[dim + 1 :])
        along = lax.broadcasted_iota(np.uint32, tuple(sizes), dim)
        along = along + jnp.asarray(start).astype(np.uint32)
        if narrow:
            low = low + along * np.uint32(stride % _WORD)
            continue
        more, term = _product(along, stride)
        low = low + term
        high = high + more + (low < term).astype(np.uint32)
    return high, low


def _product(x: jax.Array, factor: int) -> tuple[jax.Array, jax.Array]:
    """High and low words of the product with a constant below 2**64, modulo 2**64."""
    top, bottom = divmod(factor, _WORD)
    half, mask = np.uint32(16), np.uint32(0xFFFF)
    x0, x1 = x & mask, x >> half
    f0, f1 = np.uint32(bottom & 0xFFFF), np.uint32(bottom >> 16)
    cross, other = x0 * f1, x1 * f0
    middle = ((x0 * f0) >> half) + (cross & mask) + (other & mask)
    high = x1 * f1 + (cross >> half) + (other >> half) + (middle >> half)
    return high + x * np.uint32(top), x * np.uint32(bottom)
