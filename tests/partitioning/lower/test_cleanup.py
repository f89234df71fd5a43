"""Clean-ups, one by one: what is lowered, and what is left of it."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from troupe import partitioning as pt
from troupe.partitioning.ir.program import COLLECTIVES
from troupe.partitioning.ir.verify import VerificationError, verify
from troupe.partitioning.lower.cleanup import CLEANUPS, clean_up
from troupe.partitioning.lower.cleanup.reductions import _scatter_plan
from troupe.partitioning.lower.lower import lower
from troupe.partitioning.lower.reshard import steps

MESH = pt.Mesh({"a": 2, "b": 2, "c": 2})


def f(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, jnp.float32)


def moves(program: pt.Program) -> list[str]:
    return [op.name for op in program.walk() if op.name in COLLECTIVES or op.name == "all_slice"]


def before_and_after(fn: Any, *shapes: Any, schedule: Any) -> tuple[list[str], list[str]]:
    plan = pt.partition(fn, MESH, schedule).plan(*shapes)
    local = lower(plan.graph, plan.state)
    verify(local, MESH.axes, types=True)
    raw = moves(local)
    clean_up(local, MESH.axes, after=lambda _, program: verify(program, MESH.axes, types=True))
    return raw, moves(local)


def tile(axis: str, **dims: Any) -> pt.Manual:
    return pt.Manual(f"tile {axis}", dims, axis)


def test_a_sliced_reduction_scatters() -> None:
    def fn(x: jax.Array, w: jax.Array) -> jax.Array:
        return pt.tag(x.T @ w, "g") * 2

    schedule = [tile("a", x=0), tile("a", g=0)]
    raw, clean = before_and_after(fn, f(8, 4), f(8, 4), schedule=schedule)
    assert raw == ["all_reduce", "all_slice"]
    assert clean == ["reduce_scatter"]


def test_over_axes_that_are_not_sliced_the_slice_is_reduced() -> None:
    """As with a batch over both axes and arguments split over one of them."""

    def fn(x: jax.Array, w: jax.Array) -> jax.Array:
        return pt.tag(x.T @ w, "g") * 2

    schedule = [tile("a", x=0), tile("b", x=0), tile("a", g=0)]
    raw, clean = before_and_after(fn, f(16, 4), f(16, 4), schedule=schedule)
    assert raw == ["all_reduce", "all_slice"]
    assert clean == ["reduce_scatter", "all_reduce"]
    step = pt.partition(fn, MESH, schedule)
    x, w = (jax.random.normal(jax.random.key(i), (16, 4)) for i in range(2))
    np.testing.assert_allclose(step(x, w), fn(x, w), rtol=1e-5, atol=1e-5)


def test_rests_of_the_slice_and_of_the_axes_remain() -> None:
    whole = ((), ())
    assert _scatter_plan((("a", "b"), ()), ("a",)) == (whole, [(0, ("a",))], (("b",), ()), ())
    assert _scatter_plan((("b", "a"), ("c",)), ("a", "c")) == (
        (("b",), ()),
        [(0, ("a",)), (1, ("c",))],
        whole,
        (),
    )
    assert _scatter_plan((("a",), ()), ("b", "a")) == (whole, [(0, ("a",))], whole, ("b",))
    assert _scatter_plan((("a",), ()), ("b",)) is None
    assert _scatter_plan((("a", "b", "c"), ()), ("a", "c")) is None


def test_a_gather_that_is_sliced_elsewhere_is_an_all_to_all() -> None:
    def fn(x: jax.Array) -> jax.Array:
        return pt.tag(jnp.cumsum(pt.tag(jnp.sin(x), "y"), 0), "z")

    schedule = [tile("a", y=0), tile("a", z=1)]
    _, clean = before_and_after(fn, f(8, 4), schedule=schedule)
    assert clean == ["all_to_all"] or clean == ["all_to_all", "all_slice"]


def test_sums_of_reductions_reduce_once() -> None:
    def fn(x: jax.Array, y: jax.Array, z: jax.Array, r: jax.Array) -> jax.Array:
        return ((r + x.sum(0)) + y.sum(0).reshape(2, 2).reshape(4)) - 0.5 * z.sum(0)

    raw, clean = before_and_after(
        fn, f(8, 4), f(8, 4), f(8, 4), f(4), schedule=[tile("a", x=0, y=0, z=0)]
    )
    assert raw == ["all_reduce"] * 3
    assert clean == ["all_reduce"]


def test_a_reduction_that_others_read_stays() -> None:
    def fn(x: jax.Array, y: jax.Array) -> Any:
        total = x.sum(0)
        return total, total + y.sum(0)

    raw, clean = before_and_after(fn, f(8, 4), f(8, 4), schedule=[tile("a", x=0, y=0)])
    assert raw == clean == ["all_reduce"] * 2


def test_equal_gathers_are_one_also_through_views() -> None:
    def fn(w: jax.Array, x: jax.Array) -> Any:
        return x @ w, x @ w.T, jnp.cumsum(w, 0)

    schedule = [tile("a", x=0), tile("a", w=0)]
    _, clean = before_and_after(fn, f(4, 4), f(8, 4), schedule=schedule)
    assert clean.count("all_gather") == 1


def test_a_gather_stays_behind_a_view_that_merges_its_tile() -> None:
    """A device holds one group of a convolution, whose kernel is regrouped for the gradient."""

    def loss(x: jax.Array, w: jax.Array) -> jax.Array:
        names = ("NHWC", "HWIO", "NHWC")
        return (
            jax.lax.conv_general_dilated(
                x, w, (1, 1), "SAME", dimension_numbers=names, feature_group_count=2
            )
            ** 2
        ).sum()

    shapes = f(4, 5, 5, 8), f(3, 3, 4, 8)
    schedule = [tile("a", x=0), tile("a", w=3)]
    before_and_after(jax.grad(loss, (0, 1)), *shapes, schedule=schedule)
    keys = jax.random.split(jax.random.PRNGKey(0))
    x, w = (jax.random.normal(k, s.shape) for k, s in zip(keys, shapes, strict=True))
    step = pt.partition(jax.grad(loss, (0, 1)), MESH, schedule)
    for actual, expected in zip(step(x, w), jax.grad(loss, (0, 1))(x, w), strict=True):
        np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-4)


def test_a_scattered_sum_is_followed_where_each_device_holds_one_group() -> None:
    """Of local sizes alone, the tile of one group vanishes in the reshape."""

    def fn(a: jax.Array, b: jax.Array) -> jax.Array:
        return a.sum(0).reshape(2, 4) * b

    shapes = f(6, 8), f(2, 4)
    schedule = [tile("a", a=0), tile("a", b=0)]
    raw, clean = before_and_after(fn, *shapes, schedule=schedule)
    assert raw == ["all_reduce", "all_slice"]
    assert clean == ["reduce_scatter"]
    keys = jax.random.split(jax.random.PRNGKey(0))
    a, b = (jax.random.normal(k, s.shape) for k, s in zip(keys, shapes, strict=True))
    np.testing.assert_allclose(pt.partition(fn, MESH, schedule)(a, b), fn(a, b), rtol=1e-5)


def test_equal_sums_are_summed_once() -> None:
    def fn(x: jax.Array) -> Any:
        centred = x - x.mean(0)
        return (2.0 * x).sum(0), centred / jnp.sqrt(x.var(0)), jnp.exp((2.0 * x).sum(0))

    raw, clean = before_and_after(fn, f(8, 4), schedule=[tile("a", x=0)])
    assert raw == ["all_reduce"] * 5
    assert clean == ["all_reduce"] * 3


def test_what_no_turn_changes_is_gathered_before_the_loop() -> None:
    """Also where a turn casts or transposes it first."""

    def fn(w: jax.Array, x: jax.Array) -> jax.Array:
        def turn(h: jax.Array, _: None) -> tuple[jax.Array, None]:
            return jnp.tanh(h @ w.astype(jnp.bfloat16).astype(jnp.float32).T) + h @ w, None

        return jax.lax.scan(turn, x, None, length=5)[0]

    schedule = [tile("a", x=0), tile("a", w=0)]
    plan = pt.partition(fn, MESH, schedule).plan(f(4, 4), f(8, 4))
    (loop,) = [op for op in plan.program.ops if op.name == "scan"]
    assert not moves(loop.regions[0])
    assert plan.collectives["all_gather"] == 2
    w, x = jnp.arange(16.0).reshape(4, 4) / 16, jnp.arange(32.0).reshape(8, 4) / 32
    np.testing.assert_allclose(pt.partition(fn, MESH, schedule)(w, x), fn(w, x), rtol=1e-5)


def test_a_batch_of_linear_systems_stays_tiled() -> None:
    def fn(a: jax.Array, b: jax.Array) -> Any:
        return jnp.linalg.solve(a, b), jnp.linalg.inv(a)

    schedule = [tile("a", a=0, b=0)]
    plan = pt.partition(fn, MESH, schedule).plan(f(4, 3, 3), f(4, 3, 1))
    assert moves(plan.program) == []
    keys = jax.random.split(jax.random.PRNGKey(0))
    a, b = (jax.random.normal(k, s) for k, s in zip(keys, [(4, 3, 3), (4, 3, 1)], strict=True))
    for actual, expected in zip(pt.partition(fn, MESH, schedule)(a, b), fn(a, b), strict=True):
        np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-5)


def test_every_clean_up_says_what_it_does() -> None:
    assert all(row.does for row in CLEANUPS)


@pytest.mark.parametrize(
    ("source", "target", "expected"),
    [
        ((("a",), ()), ((), ("a",)), ["all_to_all"]),
        (((), ()), (("a", "b"), ("c",)), ["all_slice"]),
        ((("a", "b"), ()), (("a",), ()), ["all_gather"]),
        ((("a", "b"), ()), ((), ()), ["all_gather"]),
        ((("a",), ("b",)), (("a", "c"), ()), ["all_slice", "all_gather"]),
        ((("a", "b"),), (("b", "a"),), ["all_gather", "all_slice"]),
        ((("a", "b"), ()), (("b",), ("a",)), ["all_gather", "all_to_all", "all_slice"]),
    ],
)
def test_paths_between_layouts(source: Any, target: Any, expected: list[str]) -> None:
    path = steps(source, target)
    assert [name for name, _, _ in path] == expected
    assert path[-1][2] == target


def test_the_verifier_names_what_is_wrong() -> None:
    plan = pt.partition(lambda x: x.sum(0), MESH, [tile("a", x=0)]).plan(f(8, 4))
    local = plan.program
    reduce = next(op for op in local.ops if op.name == "all_reduce")
    reduce.params["axes"] = ("b",)
    with pytest.raises(VerificationError, match=r"all_reduce at test_cleanup.py:\d+ reduces over"):
        verify(local, MESH.axes)
    local.ops.remove(reduce)
    with pytest.raises(VerificationError, match="which nothing makes"):
        verify(local, MESH.axes)


def test_what_is_put_together_is_gathered_in_one_message() -> None:
    def fn(x: jax.Array, y: jax.Array) -> jax.Array:
        return jnp.concatenate([x * 2, y * 3], axis=1)

    schedule = [tile("a", x=1, y=1)]
    raw, clean = before_and_after(fn, f(4, 8), f(4, 8), schedule=schedule)
    assert raw == ["all_gather"] * 2
    assert clean == ["all_gather"]
    raw, clean = before_and_after(fn, f(4, 8), f(4, 2), schedule=schedule)
    assert raw == clean == ["all_gather"] * 2  # Of unlike shapes.
    x, y = np.arange(32.0).reshape(4, 8), -np.arange(32.0).reshape(4, 8)
    found = pt.partition(fn, MESH, schedule)(x, y)
    np.testing.assert_array_equal(found, np.concatenate([x * 2, y * 3], 1))


def test_a_turn_of_an_lstm_with_a_sharded_state() -> None:
    """Forward the hidden state and the gates are gathered, backward gates and operands."""
    size, mesh = 16, pt.Mesh({"a": 2})

    def lstm(w: jax.Array, b: jax.Array, xs: jax.Array) -> jax.Array:
        def turn(state: Any, x: jax.Array) -> Any:
            h, c = state
            gates = jnp.concatenate([x, h], axis=-1) @ w + b
            i, g, f, o = jnp.split(gates, 4, axis=-1)
            c = jax.nn.sigmoid(f + 1) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
            h = jax.nn.sigmoid(o) * jnp.tanh(c)
            return (h, c), h

        zeros = jnp.zeros((xs.shape[1], size))
        return jnp.mean(jax.lax.scan(turn, (zeros, zeros), xs)[1] ** 2)

    step = jax.grad(lstm, (0, 1))
    random = np.random.default_rng(0)
    shapes = (8 + size, 4 * size), (4 * size,), (5, 4, 8)
    args = [random.normal(size=shape).astype(np.float32) for shape in shapes]
    spread = pt.partition(step, mesh, [pt.Manual("parameters", {"w": 0, "b": 0}, "a")])
    found = moves(spread.plan(*args).program)
    assert found.count("all_gather") <= 5
    for ours, expected in zip(spread(*args), jax.jit(step)(*args), strict=True):
        np.testing.assert_allclose(ours, expected, rtol=1e-5, atol=1e-6)
