"""Optimizers as pairs of pure functions, so that the examples need nothing but jax."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from .layers import widened

Tree = Any


class Optimizer(NamedTuple):
    """`init(params) -> state` and `apply(grads, state, params) -> (params, state)`."""

    init: Callable[[Tree], Tree]
    apply: Callable[[Tree, Tree, Tree], tuple[Tree, Tree]]


def global_norm(tree: Tree) -> jax.Array:
    """The Euclidean norm of all leaves together, in at least float32; []."""
    leaves = jax.tree_util.tree_leaves(tree)
    return jnp.sqrt(sum(jnp.sum(jnp.square(widened(leaf))) for leaf in leaves))


def clip_by_global_norm(grads: Tree, limit: float) -> Tree:
    """Scales the gradients down where their global norm is over the limit."""
    scale = jnp.minimum(1.0, limit / (global_norm(grads) + 1e-6))
    return jax.tree_util.tree_map(lambda g: (g * scale).astype(g.dtype), grads)


def sgd(learning_rate: float = 0.1, clip: float | None = None) -> Optimizer:
    """Plain gradient descent; its state is the number of steps."""

    def init(params: Tree) -> Tree:
        del params
        return {"count": jnp.zeros((), jnp.int32)}

    def apply(grads: Tree, state: Tree, params: Tree) -> tuple[Tree, Tree]:
        if clip is not None:
            grads = clip_by_global_norm(grads, clip)
        params = jax.tree_util.tree_map(
            lambda p, g: (p - learning_rate * g).astype(p.dtype), params, grads
        )
        return params, {"count": state["count"] + 1}

    return Optimizer(init, apply)


def adam(
    learning_rate: float = 1e-3,
    b1: float = 0.9,
    b2: float = 0.999,
    eps: float = 1e-5,
    clip: float | None = None,
    weight_decay: float = 0.0,
) -> Optimizer:
    """Adam (https://arxiv.org/abs/1412.6980), optionally clipped and with decoupled decay.

    The two moments are float32, or wider where the parameters are.
    """

    def init(params: Tree) -> Tree:
        zeros = jax.tree_util.tree_map(lambda p: jnp.zeros_like(widened(p)), params)
        copies = jax.tree_util.tree_map(jnp.zeros_like, zeros)
        return {"count": jnp.zeros((), jnp.int32), "mu": zeros, "nu": copies}

    def apply(grads: Tree, state: Tree, params: Tree) -> tuple[Tree, Tree]:
        if clip is not None:
            grads = clip_by_global_norm(grads, clip)
        count = state["count"] + 1
        mu = jax.tree_util.tree_map(lambda m, g: b1 * m + (1 - b1) * g, state["mu"], grads)
        nu = jax.tree_util.tree_map(
            lambda v, g: b2 * v + (1 - b2) * jnp.square(g), state["nu"], grads
        )
        steps = count.astype(jnp.float32)
        unbias1, unbias2 = 1 - b1**steps, 1 - b2**steps

        def move(p: jax.Array, m: jax.Array, v: jax.Array) -> jax.Array:
            step = (m / unbias1) / (jnp.sqrt(v / unbias2) + eps)
            return (p - learning_rate * (step + weight_decay * p)).astype(p.dtype)

        params = jax.tree_util.tree_map(move, params, mu, nu)
        return params, {"count": count, "mu": mu, "nu": nu}

    return Optimizer(init, apply)


def make(name: str, **options: Any) -> Optimizer:
    """The optimizer of that name: "sgd" or "adam"."""
    known: dict[str, Any] = {"sgd": sgd, "adam": adam}
    if name not in known:
        raise ValueError(f"no optimizer {name!r}; there are {', '.join(known)}")
    return known[name](**options)
