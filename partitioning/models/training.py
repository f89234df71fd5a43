"""Builds an update step from a loss, for all examples."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax

from . import optimizers

Tree = Any


def supervised(
    loss: Callable[..., jax.Array], optimizer: optimizers.Optimizer, keyed: bool = False
) -> Callable[[Tree, Tree], tuple[Tree, Tree]]:
    """The step (state, batch) -> (state, {"loss": []}) that descends a loss.

    Args:
      loss: (params, batch) -> [], or (params, batch, key) -> [] when `keyed`.
      optimizer: moves the parameters; its state is state["opt"].
      keyed: True if the loss consumes a key; then state["key"] is split at every step.
    """

    def update(state: Tree, batch: Tree) -> tuple[Tree, Tree]:
        carried: dict[str, Any] = {}
        extra: tuple[Any, ...] = ()
        if keyed:
            carried["key"], step_key = jax.random.split(state["key"])
            extra = (step_key,)
        value, grads = jax.value_and_grad(loss)(state["params"], batch, *extra)
        params, opt = optimizer.apply(grads, state["opt"], state["params"])
        return {"params": params, "opt": opt, **carried}, {"loss": value}

    return update


def initial_state(
    params_init: Callable[[jax.Array], Tree],
    optimizer: optimizers.Optimizer,
    keyed: bool = False,
    typed_key: bool = False,
) -> Callable[[jax.Array], Tree]:
    """key -> {"params", "opt"} and, when `keyed`, "key" (old style, or typed on request)."""

    def init(key: jax.Array) -> Tree:
        params = params_init(key)
        state = {"params": params, "opt": optimizer.init(params)}
        if keyed:
            state["key"] = jax.random.key(1) if typed_key else jax.random.PRNGKey(1)
        return state

    return init
