"""A step is planned and compiled once for its shapes, wherever its arguments lie."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

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
    run = step.compile(state, batch)
    batch, compiled = jnp.asarray(batch), []
    state = step(state, batch)  # jax compiles how it splits the batch
    jax.monitoring.register_event_duration_secs_listener(
        lambda name, *_, **__: compiled.append(name)
    )
    for _ in range(2):
        state = step(state, batch)
    assert len(traced) == planned
    assert not [name for name in compiled if "backend_compile" in name]
    assert step.compile(state, batch) is run
    assert int(state["count"]) == 4


def scaled(x, factor):
    return x * factor + 1


def rows(count=8, dtype=np.float32):
    return np.arange(4 * count, dtype=dtype).reshape(count, 4)


def partitioned(traced=None, **options):
    def fn(x, factor):
        if traced is not None:
            traced.append(1)
        return scaled(x, factor)

    mesh = pt.Mesh({"data": 4}, jax.devices()[:4])
    return pt.partition(fn, mesh, [pt.Manual("rows", {"x": 0}, "data")], **options)


@pytest.mark.parametrize("donate", [(), ("x",)])
def test_arguments_may_lie_anywhere_and_be_of_any_kind(donate):
    step = partitioned(donate=donate)
    elsewhere = jax.devices()[5]
    mesh = pt.Mesh({"other": 2}, jax.devices()[6:8]).jax_mesh()
    spread = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("other"))
    for _ in range(2):
        for place in (
            lambda x: x,
            jnp.asarray,
            lambda x: jax.device_put(x, elsewhere),
            lambda x: jax.device_put(x, spread),
            lambda x: step(x, 1.0) - 1 - 0 * x,
        ):
            for factor in (2.0, np.float32(2), np.float64(2), 2, True, np.bool_(1), jnp.int32(2)):
                found, want = step(place(rows()), factor), scaled(rows(), factor)
                np.testing.assert_array_equal(found, want)
                assert found.dtype == jnp.float32


def test_shapes_in_turn_and_settings_are_planned_once_each():
    traced = []
    step = partitioned(traced)
    for _ in range(3):
        for count in (8, 12):
            found = step(rows(count), 2.0)
            np.testing.assert_array_equal(found, scaled(rows(count), 2.0))
    assert len(traced) == 2
    step = partitioned(traced)
    for _ in range(2):
        step(rows(), 2.0)
        with jax.default_matmul_precision("float32"):
            step(rows(), 2.0)
    assert len(traced) == 4


def test_a_call_that_was_made_before_looks_at_little(monkeypatch):
    step = partitioned(donate=("x",))
    x = step(step(rows(), 2.0), 2.0)
    run = step.compile(x, 2.0)
    monkeypatch.setattr(type(run), "place", lambda *_: pytest.fail("placed"))
    monkeypatch.setattr(step, "_compiled", lambda *_: pytest.fail("looked up"))
    for factor in (2.0, 3.0):
        x = step(x, factor)
    assert x.sharding is run.in_shardings[0]
