"""Functions of the host are called as often, and in the order, in which one device would."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import io_callback

from troupe import partitioning as pt

from .test_control_flow import x

BATCH = pt.Manual("batch", {"x": 0}, "data")


def runs(fn: Callable[..., Any], *args: Any, schedule: Any = (BATCH,)) -> tuple[Any, Any, pt.Plan]:
    """What the function records, with its results, unpartitioned and on the mesh."""
    recorded: list[Any] = []
    step = pt.partition(fn(recorded.append), pt.Mesh({"data": 4, "model": 2}), list(schedule))
    expected = jax.device_get(jax.jit(fn(recorded.append))(*args))
    jax.effects_barrier()
    wanted = list(recorded)
    recorded.clear()
    found = jax.device_get(step(*args))
    jax.effects_barrier()
    for want, have in zip(jax.tree.leaves(expected), jax.tree.leaves(found), strict=True):
        np.testing.assert_allclose(have, want, rtol=1e-6)
    return wanted, recorded, step.plan(*args)


@pytest.mark.parametrize("ordered", [False, True])
def test_callbacks_with_effects(ordered: bool) -> None:
    def fn(record: Any) -> Any:
        def call(value: Any) -> Any:
            record(np.asarray(value).tolist())
            return np.float32(len(np.asarray(value))), np.asarray(value) > 1

        def step(x: jax.Array) -> Any:
            like = jax.ShapeDtypeStruct((), jnp.float32), jax.ShapeDtypeStruct(x.shape, bool)
            count, large = io_callback(call, like, x, ordered=ordered)
            other, _ = io_callback(call, like, x * 2, ordered=ordered)
            return x * count + other, large

        return step

    wanted, found, plan = runs(fn, jnp.arange(8.0))
    assert sorted(found) == sorted(wanted)
    assert found == wanted or not ordered
    assert len(found) == 2
    assert any("the first device" in note for note in plan.steps[-1].notes)


def test_callbacks_in_loops_and_branches() -> None:
    def fn(record: Any) -> Any:
        def call(i: Any, value: Any) -> Any:
            record((int(i), float(value)))
            return np.float32(i)

        def turn(carry: jax.Array, i: jax.Array) -> Any:
            like = jax.ShapeDtypeStruct((), jnp.float32)
            more = jax.lax.cond(
                i % 2 == 0,
                lambda: io_callback(call, like, i, carry.sum(), ordered=True),
                lambda: jnp.float32(0),
            )
            return carry + more, more

        return lambda x: jax.lax.scan(turn, x, jnp.arange(5))

    wanted, found, _ = runs(fn, jnp.arange(8.0))
    assert found == wanted
    assert len(found) == 3


def test_pure_callbacks_once_for_each_example() -> None:
    def fn(record: Any) -> Any:
        def call(row: Any) -> Any:
            record(1)
            return np.asarray(row) * 2

        def each(row: jax.Array) -> Any:
            like = jax.ShapeDtypeStruct(row.shape, row.dtype)
            return jax.pure_callback(call, like, row, vmap_method="sequential")

        return lambda x: jax.vmap(each)(x) + 1

    wanted, found, _ = runs(fn, x(8, 2))
    assert found == wanted


def debugged(record: Any, ordered: bool) -> Any:
    def step(x: jax.Array) -> jax.Array:
        jax.debug.callback(lambda v: record(np.asarray(v).tolist()), x, ordered=ordered)
        y = jnp.sum(x)
        jax.debug.callback(lambda v: record([float(v)]), y, ordered=ordered)
        return y

    return jax.grad(step)


def test_debugging_callbacks() -> None:
    wanted, found, _ = runs(lambda record: debugged(record, False), jnp.arange(8.0))
    assert len(found) == 2
    assert sorted(found) == sorted(wanted)


def test_what_jax_cannot_order_is_refused_with_its_line() -> None:
    step = pt.partition(debugged(print, True), pt.Mesh({"data": 4}), [BATCH])
    with pytest.raises(ValueError, match=r"debug_callback at test_callbacks.py:\d+ is ordered"):
        step.plan(jnp.arange(8.0))


def test_prints(capfd: pytest.CaptureFixture[str]) -> None:
    def step(x: jax.Array) -> jax.Array:
        jax.debug.print("sum {}", x.sum())
        return x

    pt.partition(step, pt.Mesh({"data": 4}), [BATCH])(jnp.arange(8.0))
    jax.effects_barrier()
    assert capfd.readouterr().out == "sum 28.0\n"
