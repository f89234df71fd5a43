"""Loops with independent turns: every device runs its share of them; other loops stay whole."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from troupe import partitioning as pt

Tree = Any
WIDTH, HIDDEN = 16, 64
MESHES = {
    "batch:data": pt.Mesh({"data": 8}),
    "batch:data,batch:model": pt.Mesh({"data": 4, "model": 2}),
    "batch:model,batch:data": pt.Mesh({"data": 4, "model": 2}),
    "batch:data,megatron:model": pt.Mesh({"data": 4, "model": 2}),
    "batch:data,zero3:data": pt.Mesh({"data": 8}),
    "megatron:model,batch:data": pt.Mesh({"data": 4, "model": 2}),
}


def arrays(rows: int = 64) -> tuple[Tree, Tree]:
    random = np.random.default_rng(0)
    up = random.normal(size=(WIDTH, HIDDEN)).astype(np.float32) / 4
    down = random.normal(size=(HIDDEN, WIDTH)).astype(np.float32) / 8
    x, y = random.normal(size=(2, rows, WIDTH)).astype(np.float32)
    return {"up": up, "down": down}, {"x": x, "y": y}


def predicted(params: Tree, x: Any) -> Any:
    return jnp.tanh(x @ params["up"]) @ params["down"]


def loss(params: Tree, x: Any, y: Any) -> Any:
    """A loss that is normalised within the micro-batch: each must stay as it is."""
    error = predicted(params, x) - y
    return jnp.mean(error**2) / (0.1 + jnp.max(jnp.abs(error)))


def descended(state: Tree, grads: Tree) -> Tree:
    return jax.tree.map(lambda p, g: p - 0.1 * g, state, grads)


def micro_batches(state: Tree, batch: Tree) -> Any:
    """16 of four rows: eight devices divide the number, and not the rows."""
    parts = jax.tree.map(lambda x: x.reshape(16, 4, -1), batch)

    def add(carry: Any, part: Tree) -> Any:
        total, value, count = carry
        found, grads = jax.value_and_grad(loss)(state, part["x"], part["y"])
        return (jax.tree.map(jnp.add, total, grads), value + found, count + 1), found

    start = jax.tree.map(jnp.zeros_like, state), 1.5, jnp.int32(3)
    (total, *rest), found = lax.scan(add, start, parts)
    return descended(state, total), (rest, found)


def cut_out(state: Tree, batch: Tree) -> Any:
    """Each turn cuts out its rows, and counts."""

    def add(i: Any, total: Tree) -> Tree:
        x, y = (lax.dynamic_slice_in_dim(batch[name], 4 * i, 4) for name in ("x", "y"))
        return jax.tree.map(lambda t, g: t - (i + 1) * g, total, jax.grad(loss)(state, x, y))

    total = lax.fori_loop(0, 16, add, jax.tree.map(jnp.ones_like, state))
    return descended(state, total), total


def mapped(state: Tree, batch: Tree) -> Any:
    """The loss of each row by itself, and its gradient: a loop forward and one backward."""

    def mean(params: Tree) -> Any:
        return jnp.mean(lax.map(lambda row: loss(params, *row), (batch["x"], batch["y"])))

    value, grads = jax.value_and_grad(mean)(state)
    return descended(state, grads), value


def until_small(state: Tree, batch: Tree) -> Any:
    """Rows for which an inner loop turns differently often, and a branch is taken or not."""

    def row(x: Any) -> Any:
        def turn(carry: Any) -> Any:
            h, count = carry
            return 0.5 * jnp.tanh(predicted(state, h)), count + 1

        h, count = lax.while_loop(lambda c: jnp.sum(c[0] ** 2) > 1.0, turn, (x, 0))
        wide = jnp.tanh(h @ state["up"])
        wide = lax.cond(count % 2 == 0, lambda h: h / (1 + jnp.sum(h**2)), jnp.sin, wide)
        return wide @ state["down"], count

    found, count = lax.map(row, batch["x"])
    return state, (found, count)


def backwards(state: Tree, batch: Tree) -> Any:
    """From the last row to the first; counts up and down, whole numbers, and what stays."""
    dtype = jnp.uint8

    def turn(carry: Any, row: Any) -> Any:
        down, up, whole, total, kept = carry
        found = predicted(state, row * down) + kept
        bits = lax.bitcast_convert_type(row, jnp.int32)
        whole = whole + bits.sum() - jnp.int32(up)
        return (down - 2, 3 + up, whole, total - found, kept), (found, down, up)

    start = jnp.int32(7), dtype(250), jnp.int32(11), jnp.zeros(WIDTH), jnp.float32(0.25)
    last, rows = lax.scan(turn, start, batch["x"], reverse=True, unroll=4)
    return state, (last, rows)


def with_keys(state: Tree, batch: Tree) -> Any:
    """Every row has a key, and noise of its own."""
    keys = jax.random.split(jax.random.key(0), batch["x"].shape[0])

    def row(given: Any) -> Any:
        key, x = given
        return predicted(state, x * jax.random.bernoulli(key, 0.5, x.shape))

    return state, lax.map(row, (keys, batch["x"]))


def nested(state: Tree, batch: Tree) -> Any:
    """Seven epochs, which divide by nothing, over micro-batches of parameters that change."""

    def epoch(params: Tree, _: Any) -> Any:
        parts = jax.tree.map(lambda x: x.reshape(16, 4, -1), batch)

        def add(total: Tree, part: Tree) -> Any:
            grads = jax.grad(loss)(params, part["x"], part["y"])
            return jax.tree.map(jnp.add, total, grads), None

        total = lax.scan(add, jax.tree.map(jnp.zeros_like, params), parts)[0]
        return descended(params, total), None

    return lax.scan(epoch, state, None, length=7)[0], ()


def half_precision(state: Tree, batch: Tree) -> Any:
    """Sums in bfloat16, and a largest value that is not a number."""

    def add(total: Any, row: Any) -> Any:
        found = predicted(state, row)
        return total + found.sum().astype(jnp.bfloat16), jnp.max(jnp.log(found))

    return state, lax.scan(add, jnp.bfloat16(0), batch["x"])


class Case(NamedTuple):
    step: Callable[[Tree, Tree], Any]
    all_reduces: int


#: With the all-reduces over eight devices: gradients, and sums that are not.
CASES = {
    "micro-batches": Case(micro_batches, 3),
    "cut out": Case(cut_out, 2),
    "mapped": Case(mapped, 3),
    "until small": Case(until_small, 0),
    "backwards": Case(backwards, 2),
    "with keys": Case(with_keys, 0),
    "nested": Case(nested, 14),
    "half precision": Case(half_precision, 1),
}


def raw(tree: Tree) -> list[Any]:
    return [np.asarray(leaf) for leaf in jax.tree.leaves(tree)]


@pytest.mark.parametrize("name", CASES)
def test_each_device_runs_its_share_of_the_turns(name: str) -> None:
    state, batch = arrays()
    step, all_reduces = CASES[name]
    whole, split = (
        pt.partition(step, MESHES["batch:data"], schedule).plan(state, batch).steps[-1]
        for schedule in ([], pt.parse_schedule("batch:data"))
    )
    assert split.split["data"] > 0.99
    assert split.simulation.flops <= 0.14 * whole.simulation.flops
    assert split.simulation.predicted_seconds.total < whole.simulation.predicted_seconds.total
    assert split.collectives["all_reduce"] == all_reduces
    assert any(
        "are independent, and each device runs its share" in line for line in split.remarks()
    )


@pytest.mark.parametrize("schedule", MESHES)
@pytest.mark.parametrize("name", CASES)
def test_results_are_those_of_one_device(name: str, schedule: str) -> None:
    state, batch = arrays()
    step = pt.partition(CASES[name].step, MESHES[schedule], pt.parse_schedule(schedule))
    got, wanted = step(state, batch), jax.jit(CASES[name].step)(state, batch)
    assert jax.tree.structure(got) == jax.tree.structure(wanted)
    for a, b in zip(raw(got), raw(wanted), strict=True):
        assert a.dtype == b.dtype
        if np.issubdtype(a.dtype, np.integer):
            np.testing.assert_array_equal(a, b)
        else:
            rough = a.dtype.name == "bfloat16"
            a, b = a.astype(np.float64), b.astype(np.float64)
            np.testing.assert_allclose(a, b, rtol=0.1 if rough else 3e-5, atol=1e-5)


def chained(state: Tree, batch: Tree) -> Any:
    """Each turn reads the sum so far."""
    return state, lax.scan(lambda c, x: (c + jnp.tanh(c + x), None), jnp.zeros(16), batch["x"])[0]


def running(state: Tree, batch: Tree) -> Any:
    """The sum so far comes out of every turn."""

    def turn(total: Any, x: Any) -> Any:
        total = total + predicted(state, x)
        return total, total

    return state, lax.scan(turn, jnp.zeros(16), batch["x"])


def rounded(state: Tree, batch: Tree) -> Any:
    """Every turn rounds what it adds to."""

    def turn(total: Any, x: Any) -> Any:
        return lax.reduce_precision(total, 8, 7) + predicted(state, x), None

    return state, lax.scan(turn, jnp.zeros(16), batch["x"])[0]


def subtracted(state: Tree, batch: Tree) -> Any:
    """Every turn changes the sign of what it adds to."""
    return state, lax.scan(lambda c, x: (predicted(state, x) - c, None), jnp.zeros(16), batch["x"])[
        0
    ]


def last(state: Tree, batch: Tree) -> Any:
    """What the last turn found comes out."""
    return state, lax.scan(lambda _, x: (predicted(state, x), None), jnp.zeros(16), batch["x"])[0]


def told(state: Tree, batch: Tree) -> Any:
    """Every turn calls the host."""

    def row(x: Any) -> Any:
        jax.debug.callback(lambda _: None, x[0])
        return predicted(state, x)

    return state, lax.map(row, batch["x"])


@pytest.mark.parametrize("step", [chained, running, rounded, subtracted, last, told])
def test_turns_that_are_not_independent_stay(step: Callable[[Tree, Tree], Any]) -> None:
    """And the plan says where the rows end."""
    state, batch = arrays()
    partitioned = pt.partition(step, MESHES["batch:data"], pt.parse_schedule("batch:data"))
    plan = partitioned.plan(state, batch)
    assert plan.steps[-1].split["data"] < 0.01
    (line,) = [
        line for line in plan.steps[-1].remarks() if "ends at scan at test_turns.py:" in line
    ]
    assert "the loop runs over dimension 0, and its turns are not independent" in line
    assert any("is split over data=8" in line for line in plan.warnings)
    for a, b in zip(raw(partitioned(state, batch)), raw(jax.jit(step)(state, batch)), strict=True):
        np.testing.assert_allclose(a, b, rtol=3e-5, atol=1e-5)


@pytest.mark.parametrize("schedule", MESHES)
def test_devices_that_turn_differently_do_not_wait_for_each_other(schedule: str) -> None:
    columns = pt.Manual("columns", {"state/up": 1}, "model")
    tactics = [*pt.parse_schedule(schedule), *([columns] if "model" in schedule else [])]
    plan = pt.partition(until_small, MESHES[schedule], tactics).plan(*arrays())
    loops = [op for op in plan.program.walk() if op.params.get("turns")]
    assert len(loops) == (schedule != "megatron:model,batch:data")
    inside = [
        o for op in loops for r in op.regions for o in r.walk() if o.name in ("while", "cond")
    ]
    held = [o.name for op in inside for region in op.regions for o in region.walk()]
    assert not {"all_reduce", "all_gather", "reduce_scatter", "all_to_all"} & {*held}


def test_members_of_an_ensemble_are_split() -> None:
    """They lie in the state, and no row comes with them."""
    state, batch = arrays()
    members = jax.tree.map(lambda w: np.stack([w * i for i in range(1, 9)]), state)

    def step(members: Tree, batch: Tree) -> Any:
        def grads(params: Tree) -> Tree:
            return jax.grad(loss)(params, batch["x"], batch["y"])

        return descended(members, lax.map(grads, members))

    schedule = [pt.Manual("members", {"members": 0}, "data")]
    partitioned = pt.partition(step, MESHES["batch:data"], schedule)
    plan = partitioned.plan(members, batch)
    assert plan.steps[-1].split["data"] > 0.99
    assert not any(plan.collectives.values())
    got, wanted = partitioned(members, batch), jax.jit(step)(members, batch)
    for a, b in zip(raw(got), raw(wanted), strict=True):
        np.testing.assert_allclose(a, b, rtol=3e-5, atol=1e-5)


def test_what_turns_stack_is_explained_by_them() -> None:
    plan = pt.partition(
        CASES["with keys"].step, MESHES["batch:data"], pt.parse_schedule("batch:data")
    ).plan(*arrays())
    assert "the 64 turns of scan at test_turns.py:" in plan.explain("out/1")


def test_plans_are_made_again_recomputed_and_placed() -> None:
    """From decisions as JSON; with loops that stack less; with axes cut for their reductions."""
    state, batch = arrays()
    step, mesh = CASES["mapped"].step, MESHES["batch:data"]
    schedule = pt.parse_schedule("batch:data")
    wanted = raw(jax.jit(step)(state, batch))
    plan = pt.partition(step, mesh, schedule).plan(state, batch)
    decisions = pt.PlanDecisions.from_json(plan.decisions.to_json())
    again = pt.partition(step, mesh, schedule, decisions=decisions)
    assert str(again.plan(state, batch)) == str(plan)
    had = plan.steps[-1].simulation
    memory = 0.95 * had.peak_memory_bytes / had.device.memory_bytes
    slow = pt.Topology((pt.Level("gpu", 4, 1e11, 1e-6), pt.Level("host", 2, 1e8, 1e-5)))
    step = pt.partition(
        step, mesh, schedule, simulate=pt.Simulator("h200", slow), reductions="synthesised",
        recompute=pt.Recompute(memory),
    )  # fmt: skip
    last = step.plan(state, batch)
    assert [made.name for made in last.steps] == ["batch parallel", "recompute", "reductions"]
    assert last.steps[1].simulation.peak_memory_bytes < had.peak_memory_bytes
    assert "turns=('data_host', 'data_gpu')" in step.lower_text()
    for a, b in zip(raw(step(state, batch)), wanted, strict=True):
        np.testing.assert_allclose(a, b, rtol=3e-5, atol=1e-5)


@pytest.mark.parametrize("order", ["xy", "yx"])
def test_one_axis_splits_one_of_two_nested_loops(order: str) -> None:
    """Whichever rows come first; a loop within a loop of other axes is split over its own."""

    def step(x: Any, y: Any, w: Any) -> Any:
        def row(x: Any) -> Any:
            def add(i: Any, total: Any) -> Any:
                return total + jnp.sum(jnp.tanh((x * y[i]) @ w))

            return lax.fori_loop(0, 8, add, 0.0), lax.map(lambda y: jnp.sum(jnp.sin(x * y) @ w), y)

        return lax.map(row, x)

    random = np.random.default_rng(0)
    shapes = (16, 16), (8, 16), (16, 16)
    x, y, w = (random.normal(size=shape).astype(np.float32) for shape in shapes)
    wanted = raw(jax.jit(step)(x, y, w))
    for axes in (("data", "data"), ("data", "model")):
        mesh = pt.Mesh({"data": 8}) if axes[0] == axes[1] else pt.Mesh({"data": 4, "model": 2})
        schedule = [pt.Manual(n, {n: 0}, a) for n, a in zip(order, axes, strict=True)]
        for a, b in zip(raw(pt.partition(step, mesh, schedule)(x, y, w)), wanted, strict=True):
            np.testing.assert_allclose(a, b, rtol=3e-5, atol=1e-5)


def test_a_loop_in_one_that_devices_turn_differently_often_stays() -> None:
    def step(x: Any, y: Any) -> Any:
        def row(x: Any) -> Any:
            def turn(x: Any) -> Any:
                return 0.5 * x + 0.01 * jnp.sum(lax.map(lambda y: jnp.tanh(y * x), y), 0)

            return lax.while_loop(lambda x: jnp.sum(x**2) > 1.0, turn, x)

        return lax.map(row, x)

    random = np.random.default_rng(0)
    x, y = (random.normal(size=(8, 16)).astype(np.float32) for _ in range(2))
    schedule = [pt.Manual("x", {"x": 0}, "data"), pt.Manual("y", {"y": 0}, "model")]
    partitioned = pt.partition(step, pt.Mesh({"data": 4, "model": 2}), schedule)
    last = partitioned.plan(x, y).steps[-1]
    assert last.split == {"data": 1.0, "model": 0.0}
    assert last.collectives["all_reduce"] == 0
    np.testing.assert_allclose(partitioned(x, y), jax.jit(step)(x, y), rtol=3e-5, atol=1e-5)
