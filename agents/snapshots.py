"""Snapshots of an agent: nests of device arrays as nests of numpy arrays, and back."""

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


def words_of(leaf: Any) -> Any:
    """Typed PRNG keys as their words; any other array as it is."""
    return leaf if key_impl(leaf) is None else jax.random.key_data(leaf)


def word_shapes(shapes: Nest) -> Nest:
    """`jax.ShapeDtypeStruct`s as `words_of` changes what they are of; shardings stay."""

    def shape(one: jax.ShapeDtypeStruct) -> jax.ShapeDtypeStruct:
        if key_impl(one) is None:
            return one
        words = jax.eval_shape(jax.random.key_data, jax.ShapeDtypeStruct(one.shape, one.dtype))
        # A spec says nothing of the last dimension, along which words are together.
        return jax.ShapeDtypeStruct(words.shape, words.dtype, sharding=one.sharding)

    return jax.tree.map(shape, shapes)


def to_host(state: Nest) -> Nest:
    """A nest of device arrays as numpy arrays; typed PRNG keys as their words."""
    return jax.tree.map(lambda x: np.asarray(words_of(x)), state)


def typed(leaf: Any, like: Any) -> Any:
    """Returns what `to_host` made of an array as the type of `like`: words as PRNG keys."""
    impl = key_impl(like)
    return leaf if impl is None else jax.random.wrap_key_data(jnp.asarray(leaf), impl=impl)


def check(state: Nest, shapes: Nest) -> None:
    """Compares what was saved with what is expected.

    Args:
      state: arrays, PRNG keys as their words.
      shapes: what they should be like, as `word_shapes` gives it.

    Raises:
      ValueError: where structure, shapes or dtypes differ, naming the path.
    """
    expected, structure = jax.tree_util.tree_flatten_with_path(shapes)
    leaves, found = jax.tree.flatten(state)
    if found != structure:  # type: ignore[operator]
        raise ValueError(
            f"The saved state has another structure: {len(leaves)} arrays where {len(expected)} "
            "are expected. It was written by another agent or another configuration."
        )
    for (path, target), leaf in zip(expected, leaves, strict=True):
        if leaf.shape != target.shape or leaf.dtype != target.dtype:
            raise ValueError(
                f"The saved {jax.tree_util.keystr(path)} is {leaf.dtype}{list(leaf.shape)}; this "
                f"agent's is {target.dtype}{list(target.shape)}. It was written by another "
                "agent or another configuration."
            )


def from_host(state: Nest, like: Nest) -> Nest:
    """The inverse of `to_host`, with the structure, shapes and dtypes of `like`.

    Raises:
      ValueError: where the two differ, naming the path.
    """
    check(state, word_shapes(like))
    return jax.tree.map(typed, state, like)
