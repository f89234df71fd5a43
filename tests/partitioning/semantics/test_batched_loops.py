"""Loops whose condition `vmap` made a batch: each example turns as often as it would alone."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax import lax

from troupe import partitioning as pt

from .test_control_flow import BATCH, check, x

BOTH = pt.Manual("batch", {"x": 0, "n": 0}, "data")


def halvings(value: jax.Array, limit: jax.Array) -> tuple[jax.Array, jax.Array]:
    """How often a value is halved until it is below the limit."""
    return lax.while_loop(
        lambda c: c[1] > limit, lambda c: (c[0] + 1, c[1] * 0.5), (jnp.int32(0), value)
    )


def bounded(value: jax.Array, count: jax.Array) -> jax.Array:
    """A loop whose bound is traced. value: [D]."""
    return lax.fori_loop(0, count, lambda i, v: jnp.tanh(v + i), value)


def test_a_condition_of_each_example() -> None:
    def fn(x: jax.Array, limit: jax.Array) -> Any:
        return jax.vmap(halvings, (0, None))(x, limit)

    for schedule in ((), (BATCH,)):
        plan = check(fn, jnp.arange(8.0), jnp.float32(0.3), schedule=schedule)
        assert sum(plan.collectives.values()) == 0


def test_a_bound_of_each_example() -> None:
    def fn(x: jax.Array, n: jax.Array) -> jax.Array:
        return jax.vmap(bounded)(x, n)

    check(fn, x(8, 4), jnp.arange(8) % 5, schedule=())
    plan = check(fn, x(8, 4), jnp.arange(8) % 5, schedule=(BOTH,))
    assert sum(plan.collectives.values()) == 0
    assert plan.output_shardings[0] == "data"


def test_devices_turn_together_where_the_body_makes_them_meet() -> None:
    def fn(x: jax.Array, n: jax.Array, w: jax.Array) -> jax.Array:
        return jax.vmap(lambda v, k: lax.fori_loop(0, k, lambda i, u: jnp.tanh(u @ w), v))(x, n)

    columns = pt.Manual("columns", {"w": 1}, "model")
    rows = pt.Manual("rows", {"w": 0}, "model")
    for second in (columns, rows):
        plan = check(fn, x(8, 4), jnp.arange(8) % 5, x(4, 4), schedule=(BOTH, second))
        assert any(op.name == "all_reduce" for op in plan.program.walk())


def test_nested_batches_keys_and_constants() -> None:
    def draw(key: jax.Array, limit: jax.Array) -> Any:
        def body(carry: Any) -> Any:
            key, total, turns = carry
            key, now = jax.random.split(key)
            return key, total + jax.random.uniform(now), turns + 1

        start = (key, jnp.float32(0), 0)
        return lax.while_loop(lambda c: c[1] < limit, body, start)[1:]

    def fn(x: jax.Array, key: jax.Array) -> Any:
        keys = jax.random.split(key, x.shape)
        return jax.vmap(jax.vmap(draw))(keys, jnp.abs(x))

    check(fn, x(8, 3), jax.random.key(3))


def test_a_batched_loop_in_a_loop_and_in_a_branch() -> None:
    def fn(x: jax.Array, n: jax.Array) -> Any:
        def turn(carry: jax.Array, _: None) -> tuple[jax.Array, None]:
            moved = lax.cond(jnp.sum(n) > 0, jax.vmap(bounded), lambda v, k: v, carry, n)
            return moved, None

        return lax.scan(turn, x, None, length=3)[0]

    check(fn, x(8, 4), jnp.arange(8) % 3, schedule=(BOTH,))


@pytest.mark.long
@pytest.mark.parametrize("vmapped", [False, True])
def test_poisson(vmapped: bool) -> None:
    def fn(x: jax.Array, key: jax.Array) -> jax.Array:
        rate = jnp.abs(x) * 20
        if vmapped:
            keys = jax.random.split(key, x.shape[0])
            return jax.vmap(lambda k, r: jax.random.poisson(k, r))(keys, rate)
        return jax.random.poisson(key, rate)

    check(fn, x(8, 2), jax.random.PRNGKey(0))
