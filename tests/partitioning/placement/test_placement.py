"""Placements on hierarchies, and programs of steps in the place of sums between devices."""

from __future__ import annotations

import collections
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from troupe import partitioning as pt
from troupe.partitioning.compiled import explicit
from troupe.partitioning.ir.verify import verify
from troupe.partitioning.placement.matrix import PlacementMatrix, placements
from troupe.partitioning.placement.place import hierarchy
from troupe.partitioning.placement.synthesis import (
    ReductionStep,
    reduction_programs,
    sums,
)
from troupe.partitioning.placement.writing import scattered_dim, written


def levels(*sizes: int, outer: float = 1e9, latency: float = 1e-6) -> pt.Topology:
    """Levels of these sizes, innermost first; all but the innermost of a given bandwidth."""
    made = [
        pt.Level(f"l{i}", n, 100e9 if i == 0 else outer, latency, sharing=math.prod(sizes[:i]))
        for i, n in enumerate(sizes)
    ]
    return pt.Topology(tuple(made))


# -- matrices -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("axes", "sizes", "count"),
    [
        ((8, 4), (16, 2), 2),
        ((16, 4), (16, 4), 3),
        ((4, 16), (16, 4), 3),
        ((4, 4), (4, 2, 2), 4),
        ((8, 8), (8, 8), 4),
        ((8, 8), (16, 4), 3),
    ],
)
def test_there_are_as_many_placements_as_by_hand(axes: Any, sizes: Any, count: int) -> None:
    mesh = {f"axis{i}": n for i, n in enumerate(axes)}
    found = placements(mesh, levels(*sizes))
    assert len({str(matrix) for matrix in found}) == len(found) == count
    for matrix in found:
        assert [math.prod(row) for row in matrix.rows.values()] == list(axes)
        assert tuple(np.prod(list(matrix.rows.values()), axis=0)) == sizes
        assert sorted(matrix.order()) == list(range(math.prod(axes)))
        assert PlacementMatrix.of(mesh, matrix.on(levels(*sizes))) == matrix


def test_the_order_of_the_devices_is_the_one_that_the_matrix_says() -> None:
    inside, across = placements({"data": 4, "model": 2}, levels(4, 2))
    assert inside.rows == {"data": (2, 2), "model": (2, 1)}
    assert inside.order() == tuple(range(8))  # as mesh and machine are both row-major
    assert across.rows == {"data": (4, 1), "model": (1, 2)}
    devices = np.array(across.order()).reshape(4, 2)
    assert (devices[:, 0] // 4 == 0).all()  # a group of `data` stays in its host,
    assert (devices[:, 1] - devices[:, 0] == 4).all()  # one of `model` joins two hosts


def test_an_axis_on_several_levels_has_a_part_on_each() -> None:
    matrix = PlacementMatrix.of({"data": 8, "model": 2}, levels(4, 2, 2))
    assert matrix.parts() == {"data": {"data_l2": 2, "data_l1": 2, "data_l0": 2}}
    assert matrix.split().rows == {
        "data_l2": (1, 1, 2),
        "data_l1": (1, 2, 1),
        "data_l0": (2, 1, 1),
        "model": (2, 1, 1),
    }
    with pytest.raises(ValueError, match="'data_l0', as another axis is; rename"):
        PlacementMatrix.of({"data": 8, "data_l0": 2}, levels(4, 2, 2)).parts()


def test_what_a_person_puts_on_a_level_stays_there() -> None:
    topology = pt.Topology(levels(4, 2).levels, {"model": "l1"})
    (only,) = placements({"data": 4, "model": 2}, topology)
    assert only.rows["model"] == (1, 2)
    written_and_read = pt.Topology.from_json(only.on(topology).to_json())
    assert written_and_read.place({"data": 4, "model": 2})["data"][0].level.name == "l0"


def test_a_mesh_that_does_not_fill_the_topology_has_no_placement() -> None:
    with pytest.raises(ValueError, match=r"4 devices and the topology \(l0=4, l1=2\) 8"):
        placements({"data": 4}, levels(4, 2))


# -- programs -------------------------------------------------------------------------------------


def test_every_program_sums_whatever_the_sizes() -> None:
    assert [len(reduction_programs(1, n)) for n in (1, 2, 5)] == [1, 2, 2]
    assert [len(reduction_programs(2, n)) for n in (1, 3, 5)] == [1, 13, 17]
    assert [len(reduction_programs(3, n)) for n in (1, 3, 5)] == [1, 40, 245]
    for sizes in ((4, 2), (2, 3), (3, 4)):
        assert all(sums(program, sizes) for program in reduction_programs(2))
    assert all(sums(program, (2, 3, 2)) for program in reduction_programs(3, 4))


@pytest.mark.parametrize(
    "wrong",
    [
        [("all_reduce", (0,))],  # not over all
        [("all_reduce", (1, 0)), ("all_reduce", (0,))],  # over one twice
        [("reduce_scatter", (1, 0))],  # not on all
        [("reduce_scatter", (0,)), ("all_reduce", (1,)), ("all_gather", (1,))],  # of other parts
        [("all_gather", (0,)), ("all_reduce", (1, 0))],  # of what is whole
        # gathered in another order than it was scattered in
        [("reduce_scatter", (0,)), ("reduce_scatter", (1,)), ("all_gather", (1, 0))],
    ],
)
def test_what_does_not_sum_is_told_from_what_does(wrong: Any) -> None:
    assert not sums([ReductionStep(*step) for step in wrong], (4, 2))


def test_the_dimension_that_is_scattered_divides_or_grows_least() -> None:
    assert scattered_dim((6, 8), 4) == (1, 0)
    assert scattered_dim((8, 8), 4) == (0, 0)
    assert scattered_dim((3, 99), 4) == (1, 1)


@pytest.mark.parametrize("sizes", [(4, 2), (2, 4), (2, 2, 2)])
def test_every_program_runs_and_gives_the_sum(sizes: tuple[int, ...]) -> None:
    """All of them in one program: each array of a tree is summed by another one."""
    programs = reduction_programs(len(sizes))
    mesh = pt.Mesh({"data": 8})
    shapes = [(3, 8) if i % 3 else (5, 3) for i in range(len(programs))]

    def fn(arrays: Any) -> Any:
        return [jnp.sum(x, axis=0) for x in arrays]

    arrays = [
        np.arange(8 * math.prod(s), dtype=np.float32).reshape(8, *s) % 7 + i
        for i, s in enumerate(shapes)
    ]
    plan = pt.partition(fn, mesh, [pt.Manual("rows", {"arrays": 0}, "data")]).plan(arrays)
    lies = hierarchy(pt.Simulator(topology=levels(*sizes)), mesh.axes)
    (axes,) = (tuple(parts) for parts in lies.parts.values())
    left = iter(programs)
    local = written(
        plan.program, lies.mesh, lies.parts, lambda op: ([(a,) for a in axes[::-1]], next(left))
    )
    assert next(left, None) is None
    verify(local, lies.mesh)
    kinds = collections.Counter(op.name for op in local.walk())
    wanted = collections.Counter(step.kind for program in programs for step in program)
    assert {kind: kinds[kind] for kind in wanted} == wanted
    run = jax.jit(explicit(local, mesh.in_parts(lies.parts)))
    for found, x in zip(run(*arrays), arrays, strict=True):
        np.testing.assert_array_equal(found, x.sum(0))


# -- plans ----------------------------------------------------------------------------------------

SLOW = levels(4, 2, outer=1e8)
FAST = levels(4, 2, outer=100e9, latency=1e-4)
MESH = pt.Mesh({"data": 4, "model": 2})


def step_and_arguments(width: int = 32) -> tuple[Any, tuple[Any, Any]]:
    def loss(params: Any, x: jax.Array) -> jax.Array:
        hidden = jnp.tanh(x @ params["up"] + params["bias"])
        return jnp.mean((hidden @ params["down"]) ** 2)

    def update(state: Any, batch: Any) -> Any:
        value, grads = jax.value_and_grad(loss)(state, batch)
        return jax.tree.map(lambda p, g: p - 0.1 * g, state, grads), value

    keys = jax.random.split(jax.random.key(0), 3)
    state = {
        "up": jax.random.normal(keys[0], (24, width)),
        "bias": jnp.zeros(width),
        "down": jax.random.normal(keys[1], (width, 7)),
    }
    return update, (state, jax.random.normal(keys[2], (16, 24)))


def agrees(step: Any, update: Any, state: Any, batch: Any) -> None:
    wanted = state
    for _ in range(2):
        state, value = step(state, batch)
        wanted, loss = jax.jit(update)(wanted, batch)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5), state, wanted)
    np.testing.assert_allclose(value, loss, rtol=1e-5)


@pytest.mark.parametrize("schedule", ["batch:data", "batch:data,megatron:model"])
@pytest.mark.parametrize("width", [32, 33])
def test_sums_run_level_by_level_where_links_are_slow(schedule: str, width: int) -> None:
    update, (state, batch) = step_and_arguments(width)
    tactics = pt.parse_schedule(schedule)
    flat = pt.partition(update, MESH, tactics, simulate=pt.Simulator(topology=SLOW))
    step = pt.partition(
        update, MESH, tactics, simulate=pt.Simulator(topology=SLOW), reductions="synthesised"
    )
    plan, before = step.plan(state, batch), flat.plan(state, batch)
    last = plan.steps[-1]
    assert last.name == "reductions"
    seconds = [p.steps[-1].simulation.predicted_seconds.total for p in (plan, before)]
    assert seconds[0] < seconds[1]
    assert plan.collectives["reduce_scatter"] > before.collectives["reduce_scatter"]
    assert "reduce_scatter(l0), all_reduce(l1), all_gather(l0)" in str(plan)
    assert plan.input_shardings == before.input_shardings
    assert plan.output_shardings == before.output_shardings
    assert "data_l1" in step.lower_text()
    agrees(step, update, state, batch)


def test_a_sum_stays_at_once_where_that_is_better() -> None:
    update, (state, batch) = step_and_arguments()
    step = pt.partition(
        update, MESH, pt.parse_schedule("batch:data"), simulate=pt.Simulator(topology=FAST),
        reductions="synthesised",
    )  # fmt: skip
    plan = step.plan(state, batch)
    assert plan.steps[-1].program is plan.steps[0].program
    assert "every sum is carried out at once" in str(plan)
    assert not plan.parts
    agrees(step, update, state, batch)


def test_axes_are_laid_where_they_cost_least() -> None:
    update, (state, batch) = step_and_arguments()
    step = pt.partition(
        update, MESH, pt.parse_schedule("batch:data,megatron:model"),
        simulate=pt.Simulator(topology=SLOW), placement="auto", reductions="synthesised",
    )  # fmt: skip
    plan = step.plan(state, batch)
    *_, placed, reduced = plan.steps
    assert (placed.name, reduced.name) == ("placement", "reductions")
    # What little this model's layers exchange goes between the hosts; gradients stay inside.
    assert plan.order == (0, 4, 1, 5, 2, 6, 3, 7)
    assert placed.made.figures["rows"] == {"data": [4, 1], "model": [1, 2]}
    last = plan.steps[-3].simulation.predicted_seconds.total
    assert placed.simulation.predicted_seconds.total < last
    out, _ = step(state, batch)
    assert [d.id for d in out["up"].sharding.mesh.devices.ravel()] == list(plan.order)
    agrees(step, update, state, batch)


def test_loops_recomputation_and_bundles_go_with_it() -> None:
    def update(state: Any, batch: Any) -> Any:
        def loss(params: Any) -> jax.Array:
            def layer(x: jax.Array, w: jax.Array) -> tuple[jax.Array, None]:
                return x + jnp.tanh(x @ w) @ w.T, None

            x, _ = jax.lax.scan(layer, batch, params)
            return jnp.mean(x**2)

        value, grads = jax.value_and_grad(loss)(state)
        return state - 0.1 * grads, value

    state = 0.1 * jax.random.normal(jax.random.key(0), (4, 16, 64))
    batch = jax.random.normal(jax.random.key(1), (256, 16))
    device = pt.Simulator("h200").device
    assert isinstance(device, pt.Device)
    whole = pt.partition(update, MESH, pt.parse_schedule("batch:data,megatron:model"))
    had = whole.plan(state, batch).steps[-1].simulation.peak_memory_bytes
    step = pt.partition(
        update, MESH, pt.parse_schedule("batch:data,megatron:model"), bundle=True,
        simulate=pt.Simulator(device, SLOW), placement="auto", reductions="synthesised",
        recompute=pt.Recompute(memory=0.95 * had / device.memory_bytes),
    )  # fmt: skip
    plan = step.plan(state, batch)
    assert [s.name for s in plan.steps[-3:]] == ["recompute", "placement", "reductions"]
    assert plan.steps[-3].program is not plan.steps[-4].program
    agrees(step, update, state, batch)


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"placement": "best"}, "placement is 'auto' or None, not 'best'"),
        ({"reductions": "tree"}, r"reductions 'tree' is not one of \['flat', 'synthesised'\]"),
        ({"simulate": pt.Simulator(topology=levels(2, 2))}, "needs 8 devices and the topology"),
        ({"simulate": pt.Simulator(topology=levels(3, 4))}, "does not divide what the topology"),
    ],
)
def test_what_cannot_be_is_said_before_anything_is_traced(options: Any, match: str) -> None:
    with pytest.raises(ValueError, match=match):
        pt.partition(lambda x: x, MESH, [], **options)
