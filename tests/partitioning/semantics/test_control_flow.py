"""Loops, branches, checkpoints and odd values: planned as one wishes, and equal to the
unpartitioned run.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from troupe import partitioning as pt

MESH = pt.Mesh({"data": 4, "model": 2})
BATCH = pt.Manual("batch", {"x": 0}, "data")


def check(fn: Callable[..., Any], *args: Any, schedule: Any = (BATCH,)) -> pt.Plan:
    """Runs on the mesh, compares with one device, and returns the plan."""
    step = pt.partition(fn, MESH, list(schedule))
    plan = step.plan(*args)
    expected, found = jax.jit(fn)(*args), step(*args)
    assert jax.tree.structure(expected) == jax.tree.structure(found)
    for want, have in zip(jax.tree.leaves(expected), jax.tree.leaves(found), strict=True):
        assert (want.shape, want.dtype) == (have.shape, have.dtype)
        assert getattr(want, "weak_type", False) == getattr(have, "weak_type", False)
        if jnp.issubdtype(want.dtype, jax.dtypes.prng_key):
            want, have = jax.random.key_data(want), jax.random.key_data(have)
        if jnp.issubdtype(want.dtype, np.floating):
            np.testing.assert_allclose(
                np.asarray(have, np.float32), np.asarray(want, np.float32), rtol=2e-5, atol=1e-6
            )
        else:
            np.testing.assert_array_equal(np.asarray(have), np.asarray(want))
    return plan


def x(*shape: int, dtype: Any = jnp.float32) -> jax.Array:
    return (jnp.arange(np.prod(shape, dtype=int)).reshape(shape) % 7 - 3).astype(dtype) * 0.3


def recurrent(x: jax.Array, w: jax.Array) -> Any:
    """A loss over a recurrence whose weights every turn uses, with its gradient. x: [B, T, D]."""

    def loss(w: jax.Array) -> jax.Array:
        def turn(h: jax.Array, row: jax.Array) -> tuple[jax.Array, jax.Array]:
            h = jnp.tanh(h @ w + row)
            return h, h

        _, rows = lax.scan(turn, jnp.zeros((x.shape[0], x.shape[2])), x.swapaxes(0, 1))
        return jnp.mean(rows**2)

    return jax.value_and_grad(loss)(w)


def test_gradients_of_a_loops_weights_are_reduced_once() -> None:
    plan = check(recurrent, x(8, 5, 4), x(4, 4))
    assert plan.collectives == {
        "all_reduce": 2,
        "all_gather": 0,
        "reduce_scatter": 0,
        "all_to_all": 0,
    }


def test_a_loops_weights_are_gathered_once() -> None:
    plan = check(
        recurrent, x(8, 5, 4), x(4, 4), schedule=(BATCH, pt.Manual("share", {"w": 0}, "data"))
    )
    assert plan.collectives["all_gather"] <= 2
    assert plan.collectives["all_reduce"] == 2


def test_collectives_inside_a_loop_count_as_often_as_it_turns() -> None:
    def fn(x: jax.Array) -> jax.Array:
        return lax.scan(lambda c, _: (jnp.tanh(c + jnp.sum(c)), None), x, None, length=6)[0]

    assert check(fn, x(8)).collectives["all_reduce"] == 6


def test_accumulation_that_does_not_start_at_zero() -> None:
    def fn(x: jax.Array, start: jax.Array) -> jax.Array:
        return lax.scan(lambda c, row: (c + row.sum(0), None), start, x.swapaxes(0, 1))[0]

    assert check(fn, x(8, 3, 4), x(4) + 1).collectives["all_reduce"] == 1


def test_a_carry_takes_the_layout_that_the_body_asks_for() -> None:
    def fn(x: jax.Array, w: jax.Array) -> jax.Array:
        return lax.scan(lambda h, _: (jnp.tanh(h @ w), None), x, None, length=3)[0]

    plan = check(fn, x(8, 4), x(4, 4), schedule=(BATCH, pt.Manual("columns", {"w": 1}, "model")))
    assert plan.output_shardings[0] == "data"


def test_reverse_and_stacked_scans() -> None:
    def fn(x: jax.Array) -> Any:
        return lax.scan(
            lambda c, row: (c + row, (c, row * 2)), jnp.zeros(x.shape[1:]), x, reverse=True
        )

    for dim in (0, 1):
        check(fn, x(8, 4), schedule=(pt.Manual("tile", {"x": dim}, "data"),))


def test_while_with_constants_and_a_condition_that_reads_them() -> None:
    def fn(x: jax.Array, limit: jax.Array) -> Any:
        return lax.while_loop(
            lambda c: jnp.logical_and(c[0] < limit, jnp.sum(c[1]) < 100.0),
            lambda c: (c[0] + 1, c[1] * 1.5 + x),
            (0, x),
        )

    check(fn, jnp.abs(x(8, 4)), jnp.int32(4))


def test_branches_that_differ_in_what_they_do() -> None:
    def fn(x: jax.Array, index: jax.Array) -> jax.Array:
        return lax.switch(
            index, [lambda y: y, lambda y: y - y.mean(0), lambda y: jnp.sort(y, 0)], x
        )

    for index in range(3):
        check(fn, x(8, 4), jnp.int32(index))
    check(lambda x, p: lax.cond(p, jnp.sin, jnp.cos, x), x(8), jnp.bool_(True))


def test_nested_loops_with_a_branch_inside() -> None:
    def fn(x: jax.Array) -> jax.Array:
        def outer(c: jax.Array, row: jax.Array) -> tuple[jax.Array, jax.Array]:
            c = lax.fori_loop(
                0, 2, lambda k, y: lax.cond(k > 0, lambda z: z + row, lambda z: z * 0.5, y), c
            )
            return c, c.sum()

        return lax.scan(outer, jnp.zeros(x.shape[0]), x.T)[1]

    check(fn, x(8, 3))


def test_checkpoints_keep_their_policy() -> None:
    def fn(x: jax.Array, w: jax.Array) -> Any:
        policy = jax.checkpoint_policies.dots_with_no_batch_dims_saveable
        layer = jax.checkpoint(lambda y, v: jnp.tanh(y @ v), policy=policy)
        return jax.value_and_grad(lambda v: jnp.sum(layer(layer(x, v), v)))(w)

    plan = check(fn, x(8, 4), x(4, 4))
    assert any(op.name == "checkpoint" for op in plan.program.walk())
    assert plan.collectives["all_reduce"] == 2


def test_custom_derivatives() -> None:
    @jax.custom_vjp
    def f(y: jax.Array) -> jax.Array:
        return jnp.sin(y)

    f.defvjp(lambda y: (jnp.sin(y), y), lambda y, g: (g * 2 * jnp.cos(y),))
    check(lambda x: jax.grad(lambda y: f(y).sum())(x), x(8))
    check(lambda x: jax.nn.relu(x) + jax.grad(lambda y: jax.nn.relu(y).sum())(x), x(8))


@pytest.mark.parametrize(
    "dtype", [jnp.bfloat16, jnp.float16, jnp.int32, jnp.int8, jnp.uint32, jnp.bool_]
)
def test_dtypes(dtype: Any) -> None:
    def fn(x: jax.Array) -> Any:
        y = x.astype(dtype)
        return (
            y,
            y.sum(0),
            y.max(0),
            jnp.any(y > 0, axis=0),
            jnp.all(y > 0, axis=0),
            y[::-1],
            jnp.where(y > 0, y, 0),
        )

    check(fn, jnp.arange(16.0).reshape(8, 2) % 5)


@pytest.mark.parametrize("typed", [False, True])
def test_random_numbers_do_not_depend_on_the_mesh(typed: bool) -> None:
    def fn(x: jax.Array, key: jax.Array) -> Any:
        a, b = jax.random.split(key)
        noise = jax.random.normal(a, x.shape)
        kept = jax.random.bernoulli(b, 0.5, x.shape)
        each = jax.vmap(lambda k: jax.random.uniform(k))(jax.random.split(b, 8))
        return (
            jnp.where(kept, x + noise, 0.0),
            each,
            jax.random.fold_in(key, 3),
            jax.random.permutation(a, 8),
        )

    key = jax.random.key(7) if typed else jax.random.PRNGKey(7)
    check(fn, x(8, 6), key)


def test_empty_scalar_unused_and_returned_arguments() -> None:
    def fn(x: jax.Array, empty: jax.Array, scalar: jax.Array, unused: jax.Array) -> Any:
        return x, empty * 2, scalar, x + scalar, jnp.float32(3.0), 4, x[:0]

    check(fn, x(8, 2), jnp.zeros((0, 3)), jnp.float32(2), jnp.ones(5))


def test_weak_types_survive() -> None:
    check(lambda x, s: (x * s, s * 2, lax.fori_loop(0, 3, lambda i, c: c + 1.0, 0.0)), x(8), 3.0)


def test_captured_arrays_are_sliced_at_use() -> None:
    table = np.arange(8.0, dtype=np.float32)
    plan = check(lambda x: x + table, x(8))
    assert sum(plan.collectives.values()) == 0


def test_an_index_column_that_counts_rows_needs_no_gather() -> None:
    def fn(x: jax.Array, a: jax.Array) -> jax.Array:
        return jax.vmap(lambda row, i: row[i])(x, a)

    plan = check(
        fn, x(8, 4), jnp.arange(8) % 4, schedule=(pt.Manual("batch", {"x": 0, "a": 0}, "data"),)
    )
    assert sum(plan.collectives.values()) == 0


@pytest.mark.parametrize("mode", ["clip", "fill"])
def test_tables_by_rows(mode: str) -> None:
    def fn(x: jax.Array, i: jax.Array) -> Any:
        taken = jnp.take(x, i, axis=0, mode=mode, fill_value=9.0 if mode == "fill" else None)
        return taken, jax.grad(lambda t: jnp.sum(jnp.take(t, i, axis=0, mode="clip") ** 2))(x)

    plan = check(fn, x(8, 3), jnp.array([0, 7, 3, 12, -1, 3]))
    assert plan.collectives["all_gather"] == 0


def test_state_stays_on_the_mesh_and_is_donated() -> None:
    def update(state: Any, x: jax.Array) -> Any:
        return {"w": state["w"] + x.sum(0), "n": state["n"] + 1}, x.mean()

    schedule = [BATCH, pt.Manual("share", {"state/w": 0}, "model")]
    step = pt.partition(update, MESH, schedule, donate=("state",))
    state, _ = step({"w": np.zeros(4, np.float32), "n": 0}, x(8, 4))
    assert state["w"].sharding.spec == jax.sharding.PartitionSpec("model")
    again, _ = step(state, x(8, 4))
    assert state["w"].is_deleted()
    np.testing.assert_allclose(np.asarray(again["w"]), 2 * np.asarray(x(8, 4)).sum(0), rtol=1e-5)
    assert int(again["n"]) == 2
