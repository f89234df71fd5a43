"""Leading dimensions of the arrays of a nest: made one of two, or two of one."""

from __future__ import annotations

from typing import Any

import jax

Nest = Any


def merge(nest: Nest) -> Nest:
    """[M, N, ...] to [M N, ...]."""
    return jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), nest)


def split(nest: Nest, *sizes: int) -> Nest:
    """[M N, ...] to [M, N, ...] of these two sizes, of which one may be -1: what is left."""
    return jax.tree.map(lambda x: x.reshape(*sizes, *x.shape[1:]), nest)
