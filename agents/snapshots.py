"""What is saved of an agent: nests of device arrays as nests of numpy arrays, and back."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

Nest = Any


def key_impl(leaf: Any) -> Any:
    """The implementation of typed PRNG keys, of an array or a `jax.ShapeDtypeStruct`; or None."""
    if not jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        return None
    found = []
    # It can be asked of an array, also of one being traced, but not of a shape.
    jax.eval_shape(lambda key: found.append(jax.random.key_impl(key)), leaf)
    return found[0]


def to_host(state: Nest) -> Nest:
    """A nest of device arrays as numpy arrays; typed PRNG keys as their words."""
    return jax.tree.map(
        lambda x: np.asarray(x if key_impl(x) is None else jax.random.key_data(x)),
        state,
    )


def typed(leaf: Any, like: Any) -> Any:
    """What `to_host` made of an array of the type of `like`, as that type: words as PRNG keys."""
    impl = key_impl(like)
    return leaf if impl is None else jax.random.wrap_key_data(jnp.asarray(leaf), impl=impl)


def from_host(state: Nest, like: Nest) -> Nest:
    """The inverse of `to_host`, with the structure, shapes and dtypes of `like`.

    Raises:
      ValueError: where the two differ, naming the path.
    """
    expected, structure = jax.tree_util.tree_flatten_with_path(like)
    leaves, found = jax.tree.flatten(state)
    if found != structure:  # type: ignore[operator]
        raise ValueError(
            f"The saved state has another structure: {len(leaves)} arrays where {len(expected)} "
            "are expected. It was written by another agent or another configuration."
        )
    restored = []
    for (path, target), leaf in zip(expected, leaves, strict=True):
        leaf = typed(leaf, target)
        if leaf.shape != target.shape or leaf.dtype != target.dtype:
            raise ValueError(
                f"The saved {jax.tree_util.keystr(path)} is {leaf.dtype}{list(leaf.shape)}; this "
                f"agent's is {target.dtype}{list(target.shape)}. It was written by another "
                "agent or another configuration."
            )
        restored.append(leaf)
    return jax.tree.unflatten(structure, restored)
