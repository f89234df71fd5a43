"""Tilings that end are taken up again where more of the work is then split, or the plan says so."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from troupe import partitioning as pt
from troupe.partitioning.ir.execute import evaluate
from troupe.partitioning.ir.trace import trace
from troupe.partitioning.rules.canonical import canonicalize


def f(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, jnp.float32)


def plan(fn: Callable[..., Any], *shapes: Any, size: int = 8, **inputs: Any) -> pt.Plan:
    schedule = [pt.Manual("rows", inputs or {"x": 0}, "data")]
    return pt.partition(fn, pt.Mesh({"data": size}), schedule).plan(*shapes)


def test_a_split_goes_on_in_the_dimension_that_divides() -> None:
    found = plan(lambda x, w: jnp.tanh(x.reshape(4, 16, 8) @ w), f(64, 8), f(8, 8))
    assert tuple(found.output_shardings) == (None, "data")
    (line,) = found.steps[0].remarks()[1:]
    assert line.startswith("data: rows move at reshape at test_repropagate.py:")
    assert "dimension 1 of f32[4,16,8]" in line


def test_what_a_loop_runs_over_goes_on_inside() -> None:
    def fn(x: jax.Array, w: jax.Array) -> jax.Array:
        return lax.scan(lambda c, part: (c + jnp.sum(part @ w), None), 0.0, x.reshape(8, 8, 8))[0]

    found = plan(fn, f(64, 8), f(8, 8))
    assert found.steps[0].split["data"] > 0.97
    assert found.collectives["all_to_all"] == 1
    assert "rows move at scan" in found.explain("x") or "rows move at scan" in str(found)


def test_rows_in_two_dimensions_meet_in_one() -> None:
    def fn(x: jax.Array, w: jax.Array) -> jax.Array:  # (T, N), merged and split back
        merged = jnp.tanh(x.reshape(-1, 8) @ w)
        return jnp.cumsum(merged.reshape(16, 16, 8) + x, axis=0)

    found = plan(fn, f(16, 16, 8), f(8, 8), x=1)
    assert not found.conflicts
    assert tuple(found.output_shardings) == (None, "data")
    assert found.collectives == {
        "all_reduce": 0, "all_gather": 0, "reduce_scatter": 0, "all_to_all": 2,
    }  # fmt: skip


def test_few_rows_out_of_many_are_summed_instead_of_gathering_all() -> None:
    def fn(x: jax.Array, order: jax.Array, w: jax.Array) -> jax.Array:
        return jnp.tanh(x[order] @ w)

    many = jax.ShapeDtypeStruct((16,), jnp.int32)
    found = plan(fn, f(512, 8), many, f(8, 8))
    assert found.collectives["reduce_scatter"] == 1
    assert found.collectives["all_gather"] == 0
    found = plan(fn, f(16, 8), many, f(8, 8))
    assert found.collectives["all_gather"] == 1
    assert found.collectives["reduce_scatter"] == 0


def test_a_plan_says_where_a_tiling_ends_and_warns() -> None:
    def fn(x: jax.Array, w: jax.Array) -> jax.Array:
        return jnp.tanh(jnp.fft.fft(x, axis=0).real @ w) @ w

    found = plan(fn, f(64, 8), f(8, 8), x=0)
    taken_up = found.steps[0].split["data"]
    assert taken_up > 0.5
    found = plan(lambda x, w: fn(x[:63], w), f(64, 8), f(8, 8))
    assert found.steps[0].split["data"] < 0.1
    text = str(found)
    blocker = "data: the tiling of x f32[64,8], dimension 0, ends at slice at test_repropagate.py:"
    assert blocker in text
    assert "it needs dimension 0 replicated" in text
    assert "warning: 0." in text
    assert "of the work is split over data=8" in text
    assert "ends at slice at test_repropagate.py" in found.explain("x")


def test_a_pass_over_everything_says_one() -> None:
    found = plan(lambda x: jnp.tanh(x), f(64, 8))
    assert found.steps[0].remarks() == ["data: 1.00 of the work is split"]
    assert not found.warnings


PICKS: dict[str, Callable[[Any, Any], Any]] = {
    "columns": lambda x, i: x[jnp.arange(8), i],
    "constant": lambda x, i: x[np.arange(8), i],
    "last": lambda x, i: x.swapaxes(0, 2)[:, i, jnp.arange(8)[:, None]],
    "grid": lambda x, i: x[jnp.arange(8)[:, None], jnp.arange(4), i[:, None] % 3],
    "slices": lambda x, i: x[jnp.arange(8), :, i % 3],
    "clipped": lambda x, i: x.at[jnp.arange(8), i * 2].get(mode="clip"),
    "filled": lambda x, i: jnp.nan_to_num(x.at[jnp.arange(8), i * 2].get(mode="fill"), nan=9.0),
    "added": lambda x, i: x.at[jnp.arange(8), i].add(x[:, 0] * 2),
    "dropped": lambda x, i: x.at[jnp.arange(8), i * 2].set(1.0, mode="drop"),
    "loop": lambda x, i: lax.scan(
        lambda c, row: (c + row[jnp.arange(4), i[:4] % 3].sum(), row[jnp.arange(4), 0]), 0.0, x
    ),
}


@pytest.mark.parametrize("name", PICKS)
@pytest.mark.parametrize("differentiated", [False, True])
def test_an_index_that_counts_is_a_batch(name: str, differentiated: bool) -> None:
    def fn(x: jax.Array, i: jax.Array) -> Any:
        if not differentiated:
            return PICKS[name](x, i)
        return jax.grad(lambda x: sum(jnp.sum(y**2) for y in jax.tree.leaves(PICKS[name](x, i))))(x)

    x = jax.random.normal(jax.random.key(0), (8, 4, 3))
    i = jnp.asarray([0, 3, 1, -1, 2, 2, 0, 1])
    program = trace(fn, x, i)
    before = str(program)
    canonicalize(program)
    assert str(program) != before
    for op in program.walk():
        if op.name in ("gather", "scatter-add", "scatter"):
            assert op.params["dimension_numbers"].operand_batching_dims
    wanted = jax.tree.leaves(fn(x, i))
    for got, leaf in zip(evaluate(program, (x, i)), wanted, strict=True):
        np.testing.assert_allclose(got, leaf, rtol=1e-6)


def test_what_counts_otherwise_is_no_batch() -> None:
    def fn(x: jax.Array, i: jax.Array) -> Any:
        up, down = jnp.arange(8), jnp.arange(8)[::-1]
        return x[down, i], x[up + 1, i], x[up[:4], i[:4]], x[up * 2 % 8, i], x.T[up % 4, :]

    x, i = jax.random.normal(jax.random.key(0), (8, 4)), jnp.arange(8) % 4
    program = trace(fn, x, i)
    canonicalize(program)
    gathers = [op for op in program.walk() if op.name == "gather"]
    assert not any(op.params["dimension_numbers"].operand_batching_dims for op in gathers)


def test_picked_rows_are_split_before_they_are_picked() -> None:
    program = trace(lambda x, i: x[i].reshape(4, -1, 3), f(8, 3), jnp.arange(16))
    canonicalize(program)
    (gather,) = [op for op in program.ops if op.name == "gather"]
    assert gather.outputs[0].shape == (4, 4, 3)
    assert program.outputs == gather.outputs
