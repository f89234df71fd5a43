"""What every program of the table is, and what they share."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

Tree = Any


class Program(NamedTuple):
    """A step (state, batch) -> (state, anything), and arrays to call it with."""

    step: Callable[[Tree, Tree], Any]
    state: Tree
    batch: Tree


def normal(seed: int, *shape: int) -> np.ndarray:
    """Standard normal numbers, in single precision."""
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def integers(seed: int, bound: int, *shape: int) -> np.ndarray:
    """Integers from 0 below the bound."""
    return np.random.default_rng(seed).integers(0, bound, shape).astype(np.int32)


def weights(seed: int, *shape: int) -> np.ndarray:
    """A matrix, or several, that keep the scale of what they multiply."""
    return normal(seed, *shape) / np.float32(shape[-2] ** 0.5)


def perceptron(seed: int, *sizes: int) -> list[dict[str, np.ndarray]]:
    """The parameters of dense layers between these sizes."""
    return [
        {"w": weights(seed + i, n, m), "b": np.zeros(m, np.float32)}
        for i, (n, m) in enumerate(itertools.pairwise(sizes))
    ]


def apply(params: list[dict[str, Any]], x: jax.Array) -> jax.Array:
    """Dense layers with tanh between them."""
    for i, layer in enumerate(params):
        x = x @ layer["w"] + layer["b"]
        x = jnp.tanh(x) if i < len(params) - 1 else x
    return x


def trained(
    loss: Callable[..., Any], params: Tree, batch: Tree, optimizer: Any = None, **more: Any
) -> Program:
    """A step of an optimizer on `loss(params, batch)`, or `loss(params, batch, state)` -> (value,
    changes of the state), where the state holds `more` besides.
    """
    optimizer = optax.adam(1e-2) if optimizer is None else optimizer

    def step(state: Tree, batch: Tree) -> Any:
        def of_params(params: Tree) -> Any:
            return loss(params, batch, state) if more else (loss(params, batch), {})

        (value, changes), grads = jax.value_and_grad(of_params, has_aux=True)(state["params"])
        updates, opt = optimizer.update(grads, state["opt"], state["params"])
        params = optax.apply_updates(state["params"], updates)
        return {**state, **changes, "params": params, "opt": opt}, value

    return Program(step, {"params": params, "opt": optimizer.init(params), **more}, batch)
