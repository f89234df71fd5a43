"""What is saved of an agent: nests of device arrays as nests of numpy arrays, and back."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

Nest = Any


def to_host(state: Nest) -> Nest:
    """A nest of device arrays as numpy arrays; typed PRNG keys as their words."""
    return jax.tree.map(
        lambda x: np.asarray(
            jax.random.key_data(x) if jax.dtypes.issubdtype(x.dtype, jax.dtypes.prng_key) else x
        ),
        state,
    )


def from_host(state: Nest, like: Nest) -> Nest:
    """The inverse of `to_host`, with the structure, shapes and dtypes of `like`.

    Raises:
      ValueError: where the two differ, naming the path.
    """
    expected, structure = jax.tree_util.tree_flatten_with_path(like)
    leaves, found = jax.tree.flatten(state)
    if found != structure:
        raise ValueError(
            f"The saved state has another structure: {len(leaves)} arrays where {len(expected)} are "
            "expected. It was written by another agent or another configuration."
        )
    restored = []
    for (path, target), leaf in zip(expected, leaves, strict=True):
        if jax.dtypes.issubdtype(target.dtype, jax.dtypes.prng_key):
            leaf = jax.random.wrap_key_data(leaf, impl=jax.random.key_impl(target))
        if leaf.shape != target.shape or leaf.dtype != target.dtype:
            raise ValueError(
                f"The saved {jax.tree_util.keystr(path)} is {leaf.dtype}{list(leaf.shape)}; this "
                f"agent's is {target.dtype}{list(target.shape)}. It was written by another "
                "agent or another configuration."
            )
        restored.append(leaf)
    return jax.tree.unflatten(structure, restored)
