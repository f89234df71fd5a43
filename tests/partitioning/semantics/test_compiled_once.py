"""A step is planned and compiled once for its shapes, wherever its arguments lie."""

import jax
import jax.numpy as jnp
import numpy as np

from troupe import partitioning as pt


def test_results_become_arguments_without_compiling_again():
    traced = []

    def update(state, batch):
        traced.append(1)
        gradient = jax.grad(lambda w: jnp.mean((batch @ w) ** 2))(state["w"])
        return {"w": state["w"] - 0.1 * gradient, "count": state["count"] + 1}

    mesh = pt.Mesh({"data": 4}, jax.devices()[:4])
    schedule = [pt.Manual("batch", {"batch": 0}, "data"), pt.tactics.zero3("data")]
    step = pt.partition(update, mesh, schedule)
    state = {"w": np.ones((8, 4), np.float32), "count": np.int32(0)}
    batch = np.ones((16, 8), np.float32)
    state = step(state, batch)
    planned = len(traced)
    jitted = step.compile(state, batch).jitted
    for _ in range(3):
        state = step(state, jnp.asarray(batch))
    assert len(traced) == planned
    assert jitted._cache_size() == 1
    assert int(state["count"]) == 4
