"""Images among observations: which arrays are some, and how they become [rows, columns, channels].

An image may have its channels last or first, and may be a stack of frames: [H, W, C], [C, H, W],
[S, H, W, C], [S, C, H, W] or [H, W, C, S]. Bytes of two dimensions are an image of one channel.
"""

from __future__ import annotations

import itertools
import math
from typing import Any, Literal

import jax
import jax.numpy as jnp
from dm_env import specs

from ...environments.specs import describe

Nest = Any
Kind = Literal["image", "grid"]

_IMAGE_SIDE = 36
"""Pixels of a side that the convolutions of the Nature network need."""
_GRID_SIDE = 5
"""Cells of a side, from which on one convolution is worth it."""


def kind(spec: specs.Array) -> Kind | None:
    """Tells the convolutions for an array: of an image, of a grid of cells, or none (None)."""
    order = _order(spec)
    if order is None:
        return None
    least = min(spec.shape[axis] for axis in order[:2])
    return "image" if spec.dtype == "uint8" and least >= _IMAGE_SIDE else "grid"


def arranged(spec: specs.Array, x: jax.Array) -> jax.Array:
    """Puts arrays [B, *shape] of which `kind` is not None into the order [B, H, W, C].

    The frames of a stack become channels.
    """
    order = _order(spec)
    assert order is not None, spec
    rows, columns = (spec.shape[axis] for axis in order[:2])
    if order != tuple(range(len(order))):
        x = jnp.transpose(x, (0, *(1 + axis for axis in order)))
    channels = math.prod(spec.shape[axis] for axis in order[2:])
    return jnp.reshape(x, (x.shape[0], rows, columns, channels))


def remarks(spec: Nest) -> list[str]:
    """Sentences about observations that look like images and do not go through deep convolutions.

    Args:
      spec: of all observations.
    """
    found = []
    for path, leaf in jax.tree_util.tree_flatten_with_path(spec)[0]:
        where = "".join(f"[{getattr(key, 'key', getattr(key, 'idx', key))!r}]" for key in path)
        what = f"the observation{where} of {describe(leaf)} looks like an image"
        shape = leaf.shape
        sides = [pair for pair in itertools.pairwise(shape) if min(pair) >= _GRID_SIDE]
        if isinstance(leaf, specs.DiscreteArray) or not sides:
            continue
        if (found_kind := kind(leaf)) is None:
            if len(shape) > 2 or min(sides[0]) >= _IMAGE_SIDE or leaf.dtype == "uint8":
                found.append(
                    f"{what} but is flattened; give images as uint8 [rows, columns, channels]"
                )
        elif found_kind == "grid" and max(map(min, sides)) >= _IMAGE_SIDE:
            found.append(
                f"{what} but goes through one convolution, as grids do; give images as uint8 for "
                "the Nature network"
            )
    return found


def _order(spec: specs.Array) -> tuple[int, ...] | None:
    """The dimensions of an array as rows, columns and channels; None: it is no image and no grid.

    Where two orders are possible channels are last, as they are in this package's environments.
    """
    shape, rank = spec.shape, len(spec.shape)
    if rank == 2:
        return (0, 1) if spec.dtype == "uint8" and min(shape) >= _IMAGE_SIDE else None
    if rank == 3:
        if min(shape[:2]) >= _IMAGE_SIDE:
            return 0, 1, 2
        # Few bytes cannot be a side, so that even small images have their channels there.
        small = spec.dtype == "uint8" and shape[0] < _GRID_SIDE
        if min(shape[1:]) >= (_GRID_SIDE if small else _IMAGE_SIDE):
            return 1, 2, 0
        return (0, 1, 2) if min(shape[:2]) >= _GRID_SIDE else None
    if rank == 4:
        for order in ((0, 1, 2, 3), (1, 2, 0, 3), (2, 3, 0, 1)):
            if all((shape[axis] >= _IMAGE_SIDE) == (axis in order[:2]) for axis in range(4)):
                return order
    return None
