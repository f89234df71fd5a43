"""Where under half of the work is split, a plan says where the rest ended and why."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import pytest
from jax import lax

from troupe import partitioning as pt

Tree = Any
WIDTH, HIDDEN = 16, 64
MESH = pt.Mesh({"data": 8})


def f(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, jnp.float32)


WEIGHTS = {"up": f(WIDTH, HIDDEN), "down": f(HIDDEN, WIDTH)}


def loss(params: Tree, x: Any) -> Any:
    return jnp.mean((jnp.tanh(x @ params["up"]) @ params["down"]) ** 2)


def descended(state: Tree, grads: Tree) -> Tree:
    return jax.tree.map(lambda p, g: p - 0.1 * g, state, grads)


def experts(state: Tree, batch: Any) -> Any:
    """Seven experts with 23 slots, of which eight devices divide neither."""

    def routed(params: Tree) -> Any:
        expert = jnp.argmax(batch @ params["router"], -1)
        places = jnp.cumsum(jax.nn.one_hot(expert, 7, dtype=jnp.int32), 0)
        slot = jnp.take_along_axis(places, expert[:, None], 1)[:, 0] - 1
        full = jnp.zeros((7, 23, WIDTH)).at[expert, slot].add(batch, mode="drop")
        full = jax.nn.relu(jnp.einsum("ecd,edh->ech", full, params["up"]))
        full = jnp.einsum("ech,ehd->ecd", full, params["down"])
        return jnp.mean(full.at[expert, slot].get(mode="fill", fill_value=0) ** 2)

    return descended(state, jax.grad(routed)(state))


def ragged(state: Tree, batch: Any) -> Any:
    """Rows of groups, four of which are cut off."""
    sizes = jnp.full(4, 15, jnp.int32)

    def grouped(params: Tree) -> Any:
        hidden = lax.ragged_dot(batch[:60], params["up"], sizes)
        return jnp.mean(lax.ragged_dot(jnp.tanh(hidden), params["down"], sizes) ** 2)

    return descended(state, jax.grad(grouped)(state))


def drawn(state: Tree, order: Any) -> Any:
    """As many rows from a store as eight devices do not divide."""
    grads = jax.grad(loss)(state["params"], state["store"][order])
    return {"store": state["store"], "params": descended(state["params"], grads)}


def micro_batches(parts: int, decay: float) -> Callable[[Tree, Any], Any]:
    def step(state: Tree, batch: Any) -> Any:
        def add(total: Tree, x: Any) -> Any:
            grads = jax.grad(loss)(state, x)
            return jax.tree.map(lambda t, g: decay * t + g, total, grads), None

        zeros = jax.tree.map(jnp.zeros_like, state)
        total, _ = lax.scan(add, zeros, batch.reshape(parts, -1, WIDTH))
        return descended(state, total)

    return step


def row_by_row(rows: int) -> Callable[[Tree, Any], Any]:
    return lambda state, batch: (state, lax.map(lambda x: loss(state, x), batch[:rows]))


def called(state: Tree, batch: Any) -> Any:
    def row(x: Any) -> Any:
        jax.debug.callback(lambda _: None, x[0])
        return loss(state, x)

    return state, lax.map(row, batch)


def beside(state: Tree, batch: Any) -> Any:
    """The rows do not come into the work."""
    return descended(state, jax.grad(loss)(state, jnp.ones((64, WIDTH)))), batch + 1


class Case(NamedTuple):
    step: Callable[[Tree, Any], Any]
    state: Tree
    batch: Any
    line: str
    rows: str = "batch"


EXPERTS = {"router": f(WIDTH, 7), "up": f(7, WIDTH, HIDDEN), "down": f(7, HIDDEN, WIDTH)}
GROUPS = {"up": f(4, WIDTH, HIDDEN), "down": f(4, HIDDEN, WIDTH)}
CASES = {
    "experts": Case(
        experts, EXPERTS, f(128, WIDTH),
        "ends at scatter-add at {}: its result f32[7,23,16] is reduced over data=8, and whole",
    ),
    "ragged": Case(
        ragged, GROUPS, f(64, WIDTH), "ends at slice at {}: it needs dimension 0 replicated"
    ),
    "store": Case(
        drawn, {"store": f(1024, WIDTH), "params": WEIGHTS},
        jax.ShapeDtypeStruct((252,), jnp.int32),
        "ends at gather at {}: its result f32[252,16] is reduced over data=8, and whole",
        "state/store",
    ),
    "micro-batches": Case(
        micro_batches(12, 1.0), WEIGHTS, f(72, WIDTH),
        "ends at reshape at {}: 12 does not divide by data=8",
    ),
    "micro-batches, decayed": Case(
        micro_batches(16, 0.9), WEIGHTS, f(64, WIDTH),
        "ends at scan at {}: the loop runs over dimension 0, and its turns are not independent",
    ),
    "rows": Case(
        row_by_row(60), WEIGHTS, f(64, WIDTH),
        "ends at slice at {}: it needs dimension 0 replicated",
    ),
    "rows, with calls": Case(
        called, WEIGHTS, f(64, WIDTH),
        "ends at scan at {}: the loop runs over dimension 0, and its turns are not independent",
    ),
    "beside": Case(beside, WEIGHTS, f(64, WIDTH), "data: no tiling reaches dot_general at {}, 0."),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_a_line_says_where_it_ended_and_why(name: str) -> None:
    case = CASES[name]
    schedule = [pt.Manual("rows", {case.rows: 0}, "data")]
    plan = pt.partition(case.step, MESH, schedule).plan(case.state, case.batch)
    last = plan.steps[-1]
    assert last.split["data"] < 0.5
    assert any("of the work is split over data=8" in line for line in plan.warnings)
    before, after = case.line.split("{}")
    lines = [line for line in last.remarks() if before + "test_blockers.py:" in line]
    assert any(after in line for line in lines), "\n".join(last.remarks())


def test_an_inner_loop_that_is_tiled_keeps_the_outer_one_whole() -> None:
    """Devices that turned it differently often would wait for each other."""

    def step(state: Tree, batch: Any) -> Any:
        def turn(x: Any) -> Any:
            return 0.5 * jnp.tanh(x @ state["up"]) @ state["down"]

        return state, lax.map(lambda x: lax.while_loop(lambda h: h.sum() > 1.0, turn, x), batch)

    mesh, schedule = pt.Mesh({"data": 4, "model": 2}), "megatron:model,batch:data"
    plan = pt.partition(step, mesh, pt.parse_schedule(schedule)).plan(WEIGHTS, f(64, WIDTH))
    assert plan.steps[-1].split["model"] > 0.9
    assert plan.steps[-1].split["data"] < 0.1
    line = "the loop runs over dimension 0, and what is in it is tiled otherwise"
    assert any(line in text for text in plan.steps[-1].remarks())
