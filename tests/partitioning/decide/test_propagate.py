"""Propagation: one fitting factor settles an op, none leaves it, several are a conflict."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import pytest

from troupe import partitioning as pt
from troupe.partitioning.decide.graph import Graph
from troupe.partitioning.ir.trace import trace

MESH = pt.Mesh({"data": 4, "model": 2})


def f(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, jnp.float32)


def plan(fn: Any, *shapes: Any, schedule: Any) -> pt.Plan:
    return pt.partition(fn, MESH, schedule).plan(*shapes)


def two_layers(x: jax.Array, up: jax.Array, down: jax.Array) -> jax.Array:
    return jax.nn.relu(x @ up) @ down


def test_the_second_matrix_follows_from_the_first() -> None:
    found = plan(
        two_layers, f(8, 4), f(4, 16), f(16, 4), schedule=[pt.Manual("up", {"up": 1}, "model")]
    )
    spec = jax.sharding.PartitionSpec
    assert found.input_shardings == (spec(), spec(None, "model"), spec("model"))
    assert found.output_shardings == spec()
    assert found.collectives["all_reduce"] == 1


def test_a_replicated_value_blocks() -> None:
    schedule = [pt.Manual("up", {"up": 1, "down": pt.REPLICATED}, "model")]
    found = plan(two_layers, f(8, 4), f(4, 16), f(16, 4), schedule=schedule)
    assert found.input_shardings[2] == jax.sharding.PartitionSpec()


def test_an_unknown_value_is_left_to_propagation_and_the_last_key_counts() -> None:
    schedule = [pt.Manual("up", {"*": 1, "down": pt.UNKNOWN, "x": pt.UNKNOWN}, "model")]
    found = plan(two_layers, f(8, 4), f(4, 16), f(16, 4), schedule=schedule)
    assert found.input_shardings[2] == jax.sharding.PartitionSpec("model")


def test_two_factors_on_one_axis_are_a_conflict_and_nothing_is_done() -> None:
    schedule = [pt.Manual("both", {"x": 0, "up": 1}, "data")]
    found = plan(lambda x, up: x @ up, f(8, 4), f(4, 8), schedule=schedule)
    (conflict,) = found.conflicts
    assert (conflict.op, conflict.axis) == ("dot_general", "data")
    assert conflict.source.startswith("test_propagate.py:")
    assert "dimension 0 of operand 0 f32[8,4] (x)" in str(conflict)
    assert "dimension 1 of operand 1 f32[4,8] (up)" in str(conflict)
    assert found.collectives["all_gather"] == 2
    assert "conflict: dot_general" in str(found)
    assert "conflict" in found.explain("up")


def test_order_resolves_it() -> None:
    schedule = [pt.Manual("rows", {"x": 0}, "data"), pt.Manual("columns", {"up": 1}, "data")]
    found = plan(lambda x, up: x @ up, f(8, 4), f(4, 8), schedule=schedule)
    assert not found.conflicts
    assert found.output_shardings == jax.sharding.PartitionSpec("data")
    assert found.collectives["all_gather"] == 1


def test_axes_nest_in_the_order_of_tactics() -> None:
    def fn(x: jax.Array) -> jax.Array:
        return jnp.sin(x)

    for first, second in (("data", "model"), ("model", "data")):
        schedule = [pt.Manual("first", {"x": 0}, first), pt.Manual("second", {"x": 0}, second)]
        found = plan(fn, f(16), schedule=schedule)
        assert found.output_shardings == jax.sharding.PartitionSpec((first, second))
        assert sum(found.collectives.values()) == 0


def test_what_does_not_divide_is_left_alone() -> None:
    schedule = [pt.Manual("rows", {"x": 0}, "data")]
    found = plan(lambda x: x.reshape(2, 2, 2, 6).sum(0), f(8, 6), schedule=schedule)
    assert found.output_shardings == jax.sharding.PartitionSpec()
    assert found.collectives["all_gather"] == 1


def test_tags_name_intermediates() -> None:
    def fn(x: jax.Array, w: jax.Array) -> jax.Array:
        return jnp.sum(pt.tag(x @ w, "hidden") ** 2)

    schedule = [pt.Manual("tile", {"hidden": 1}, "model")]
    found = plan(fn, f(8, 4), f(4, 6), schedule=schedule)
    assert found.input_shardings[1] == jax.sharding.PartitionSpec(None, "model")
    assert "hidden f32[8,6]: (-, model)" in found.explain("hidden")
    assert "through dot_general at test_propagate.py" in found.explain("w")


def test_first_divisible_skips_what_a_loop_scans_and_what_does_not_divide() -> None:
    def fn(stack: jax.Array, odd: jax.Array) -> Any:
        return jax.lax.scan(lambda c, w: (c + w.sum(), None), 0.0, stack)[0], odd + 1

    schedule = [pt.Manual("share", {"**": pt.FIRST_DIVISIBLE}, "data")]
    found = plan(fn, f(8, 3, 4), f(3, 5), schedule=schedule)
    assert found.input_shardings[0] == jax.sharding.PartitionSpec(None, None, "data")
    assert found.steps[0].notes == ("odd [3, 5] stays replicated: no dimension divides by data=4",)


def test_callables_choose_by_path_and_leaf() -> None:
    def choose(path: str, leaf: Any) -> Any:
        return 0 if leaf.ndim == 2 and path == "x" else None

    found = plan(lambda x, w: x @ w, f(8, 4), f(4, 4), schedule=[pt.Manual("c", choose, "data")])
    assert found.input_shardings == (
        jax.sharding.PartitionSpec("data"),
        jax.sharding.PartitionSpec(),
    )
    keyed = pt.Manual("k", {lambda path, leaf: leaf.shape == (8, 4): 0}, "data")
    assert plan(lambda x, w: x @ w, f(8, 4), f(4, 4), schedule=[keyed]).input_shardings[0] == (
        jax.sharding.PartitionSpec("data")
    )


def test_planning_needs_no_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jax, "devices", lambda *_: pytest.fail("looked for devices"))
    device = pt.Simulator("h200")  # By name: the device at hand is asked of a backend that runs.
    batch = [pt.Manual("b", {"x": 0}, "data")]
    found = pt.partition(two_layers, pt.Mesh({"data": 4096}), batch, simulate=device)
    assert found.plan(f(8192, 4), f(4, 16), f(16, 4)).bytes_moved["all_reduce"] == 0


def test_state_is_found_by_structure() -> None:
    def update(state: Any, x: jax.Array) -> Any:
        return {"w": state["w"] * 2, "n": state["n"] + 1}, x @ state["w"]

    graph = Graph(trace(update, {"w": f(4, 4), "n": f()}, f(8, 4)))
    assert {before.path for before, _, _ in graph.state} == {"state/w", "state/n"}
    graph = Graph(trace(lambda x: x @ x, f(4, 4)))
    assert graph.state == ()
    graph = Graph(trace(lambda w, x: w - 0.1 * x, f(4, 4), f(4, 4)))
    assert [before.path for before, _, _ in graph.state] == ["w"]


@pytest.mark.parametrize("size", [1, 4])
def test_an_axis_of_one_does_nothing(size: int) -> None:
    schedule = [pt.tactics.batch_parallel("data"), pt.tactics.zero3("data")]
    step = pt.partition(lambda x: x.sum(0), pt.Mesh({"data": size}), schedule[:1])
    assert step.plan(f(8, 4)).collectives["all_reduce"] == (size > 1)


def test_plans_are_json_too() -> None:
    import json

    found = json.loads(
        plan(
            two_layers, f(8, 4), f(4, 16), f(16, 4), schedule=[pt.Manual("up", {"up": 1}, "model")]
        ).to_json()
    )
    assert found["mesh"] == {"data": 4, "model": 2}
    assert found["steps"][0]["collectives"]["all_reduce"] == 1
    assert found["inputs"]["down"]["sharding"] == [["model"], []]
