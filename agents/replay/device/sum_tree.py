"""Draws in proportion to weights, from a binary tree of sums in one array.

Node i has the children 2 i and 2 i + 1; the root is node 1 and slot s lies at node P + s, where P
is the number of slots rounded up to a power of two. A sum is always made from its two children, so
that it never drifts (Schaul et al., 2016, https://arxiv.org/abs/1511.05952, appendix B.2.1).
"""

from __future__ import annotations

import jax
import jax.numpy as jnp


def init(size: int) -> jax.Array:
    """Returns a tree of `size` slots whose weights are 0, float32 [2 P]."""
    return jnp.zeros(2 * _leaves(size), jnp.float32)


def set_weights(tree: jax.Array, slots: jax.Array, weights: jax.Array) -> jax.Array:
    """Sets the weights of slots.

    Args:
      tree: of `init`.
      slots: int32 [M], none of them twice; numbers beyond the tree are of no slot.
      weights: float32 [M].
    """
    leaves = tree.shape[0] // 2
    nodes = jnp.where(slots < leaves, slots + leaves, tree.shape[0])
    tree = tree.at[nodes].set(weights, mode="drop")
    for _ in range(leaves.bit_length() - 1):
        inside = nodes < tree.shape[0]
        nodes = jnp.where(inside, nodes // 2, tree.shape[0])
        sums = tree[2 * nodes] + tree[2 * nodes + 1]
        tree = tree.at[nodes].set(sums, mode="drop")
    return tree


def draw(tree: jax.Array, uniforms: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Draws a slot for every number in [0, 1).

    Returns:
      The slots, int32, and the probability of each, float32, both shaped as `uniforms`.
    """
    leaves = tree.shape[0] // 2
    left_over = uniforms * tree[1]
    nodes = jnp.ones(uniforms.shape, jnp.int32)
    for _ in range(leaves.bit_length() - 1):
        left, right = tree[2 * nodes], tree[2 * nodes + 1]
        # Rounding may leave as much as all of a node: a child without weight is never gone into.
        goes_right = (left_over >= left) & (right > 0)
        left_over = jnp.where(goes_right, left_over - left, left_over)
        nodes = 2 * nodes + goes_right
    return nodes - leaves, tree[nodes] / tree[1]


def _leaves(size: int) -> int:
    return 1 << max(0, size - 1).bit_length()
