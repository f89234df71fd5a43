"""A buffer that an argument holds twice is given away once."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from troupe import partitioning as pt

BATCH = pt.Manual("batch", {"batch": 0}, "data")


def update(state: Any, batch: jax.Array) -> Any:
    def loss(w: jax.Array) -> jax.Array:
        return jnp.mean((batch @ w - batch @ state["target"]["w"] + 1) ** 2)

    grad = jax.grad(loss)(state["params"]["w"])
    params = {"w": state["params"]["w"] - 0.1 * grad}
    return {"params": params, "target": state["target"], "key": state["key"]}, grad.sum()


def arrays(kind: str, mesh: pt.Mesh) -> Any:
    w = np.linspace(-1, 1, 32, dtype=np.float32).reshape(8, 4)
    if kind == "host":
        return w, w
    if kind == "one device":
        on_one = jnp.asarray(w)
        return on_one, on_one
    everywhere = jax.sharding.NamedSharding(mesh.jax_mesh(), jax.sharding.PartitionSpec())
    if kind == "same array":
        placed = jax.device_put(w, everywhere)
        return placed, placed
    source = jax.device_put(jnp.asarray(w), jax.devices()[0])
    return jax.device_put(source, everywhere), jax.device_put(source, everywhere)


@pytest.mark.parametrize("kind", ["host", "one device", "same array", "same memory"])
@pytest.mark.parametrize("schedule", ["batch", "zero3"])
def test_a_state_whose_target_is_its_parameters(kind: str, schedule: str) -> None:
    mesh = pt.Mesh({"data": 8})
    tactics = [BATCH] + ([pt.tactics.zero3("data")] if schedule == "zero3" else [])
    step = pt.partition(update, mesh, tactics, donate=("state",))
    batch = np.linspace(0, 1, 128, dtype=np.float32).reshape(16, 8)
    w, target = arrays(kind, mesh)
    state = {"params": {"w": w}, "target": {"w": target}, "key": jax.random.key(0)}
    w = np.asarray(w).copy()
    expected = {"params": {"w": w}, "target": {"w": w}, "key": jax.random.key(0)}
    for _ in range(2):
        state, _ = step(state, batch)
        state = {**state, "target": state["params"]}  # as an agent's periodic update makes it
        expected, _ = jax.jit(update)(expected, batch)
        expected = {**expected, "target": expected["params"]}
    np.testing.assert_allclose(state["params"]["w"], expected["params"]["w"], rtol=1e-5)


def test_what_is_kept_is_not_given_away() -> None:
    mesh = pt.Mesh({"data": 8})
    step = pt.partition(lambda state, other: (state + 1, other.sum()), mesh, [], donate=("state",))
    both = jax.device_put(
        np.ones(8, np.float32), step.compile(np.ones(8), np.ones(8)).in_shardings[0]
    )
    for _ in range(2):
        step(both, both)
        np.testing.assert_array_equal(both, np.ones(8))
