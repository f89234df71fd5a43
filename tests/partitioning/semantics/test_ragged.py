"""Ragged products are split by rows, by groups and by features, and equal jax's own."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from troupe import partitioning as pt

ROWS, GROUPS, WIDTH, HIDDEN = 64, 8, 16, 32
SIZES = np.array([5, 0, 20, 1, 9, 13, 16, 0], np.int32)
MESH = pt.Mesh({"data": 4, "expert": 2})


def arrays(dtype=np.float32):
    random = np.random.default_rng(0)
    x = random.normal(size=(ROWS, WIDTH)).astype(dtype)
    up = random.normal(size=(GROUPS, WIDTH, HIDDEN)).astype(dtype) / WIDTH**0.5
    down = random.normal(size=(GROUPS, HIDDEN, WIDTH)).astype(dtype) / HIDDEN**0.5
    return {"up": up, "down": down}, {"x": x, "sizes": SIZES}


def update(state, batch):
    def loss(params):
        h = jax.nn.relu(lax.ragged_dot(batch["x"], params["up"], batch["sizes"]))
        return jnp.mean(lax.ragged_dot(h, params["down"], batch["sizes"]) ** 2)

    value, grads = jax.value_and_grad(loss)(state)
    return jax.tree.map(lambda w, g: w - 0.1 * g, state, grads), value


ROWS_SPLIT = pt.Manual("rows", {"batch/x": 0}, "data")
GROUPS_SPLIT = pt.Manual("groups", {"state": 0}, "expert")


@pytest.mark.parametrize("sizes", [SIZES, SIZES // 2, np.full(GROUPS, 8, np.int32)], ids=str)
@pytest.mark.parametrize(
    "schedule", [[], [ROWS_SPLIT], [GROUPS_SPLIT], [ROWS_SPLIT, GROUPS_SPLIT]], ids=len
)
def test_experts_by_ragged_products_equal_jaxs(sizes, schedule):
    state, batch = arrays()
    batch["sizes"] = sizes  # Rows behind the last group are of none.
    step = pt.partition(update, MESH, schedule)
    wanted = jax.jit(update)(state, batch)
    for a, b in zip(jax.tree.leaves(step(state, batch)), jax.tree.leaves(wanted), strict=True):
        assert a.dtype == b.dtype
        np.testing.assert_allclose(a, b, rtol=2e-5, atol=1e-6)
    last = step.plan(state, batch).steps[-1]
    assert not [note for note in last.notes if "has no rule" in note]
    for axis, share in last.split.items():
        assert share > 0.95, axis


def test_rows_and_groups_leave_a_device_its_eighth_of_the_work():
    state, batch = arrays()
    whole, split = (
        pt.partition(update, MESH, schedule).plan(state, batch).steps[-1].simulation.flops
        for schedule in ([], [ROWS_SPLIT, GROUPS_SPLIT])
    )
    assert split / whole < 0.2


def test_the_memory_of_masked_rows_is_predicted():
    def shape(*sizes):
        return jax.ShapeDtypeStruct(sizes, np.float32)

    wide, hidden = 8 * WIDTH, 8 * HIDDEN
    state = {"up": shape(GROUPS, wide, hidden), "down": shape(GROUPS, hidden, wide)}
    sizes = jax.ShapeDtypeStruct((GROUPS,), np.int32)
    batch = {"x": shape(16 * ROWS, wide), "sizes": sizes}
    simulator = pt.Simulator(pt.nearest(jax.devices()[0], 8))
    step = pt.partition(update, pt.Mesh({"data": 1}), [], simulate=simulator)
    found = jax.jit(update).lower(state, batch).compile().memory_analysis()
    total = found.argument_size_in_bytes + found.output_size_in_bytes + found.temp_size_in_bytes
    predicted = step.plan(state, batch).steps[-1].simulation.peak_memory_bytes
    assert predicted == pytest.approx(total, rel=0.15)


@pytest.mark.parametrize(
    ("lhs", "rhs", "numbers", "sizes"),
    [
        # The gradient's: the ragged dimension is contracted.
        ((ROWS, 8), (ROWS, 4), (((0,), (0,)), ((), ())), ([0], [])),
        # Batched, ragged within.
        ((2, ROWS, 8), (GROUPS, 2, 8, 4), (((2,), (2,)), ((0,), (1,))), ([1], [0])),
    ],
)
def test_every_kind_equals_jaxs(lhs, rhs, numbers, sizes):
    ragged, groups = sizes
    dims = lax.RaggedDotDimensionNumbers(numbers, ragged, groups)
    random = np.random.default_rng(1)
    x, y = (random.normal(size=shape).astype(np.float32) for shape in (lhs, rhs))

    def product(x, y, sizes):
        return lax.ragged_dot_general(x, y, sizes, dims)

    step = pt.partition(product, MESH, [pt.Manual("features", {"y": len(rhs) - 1}, "expert")])
    np.testing.assert_allclose(
        step(x, y, SIZES), product(x, y, jnp.asarray(SIZES)), rtol=2e-5, atol=1e-5
    )


def test_a_tpu_keeps_its_kernel():
    state, batch = arrays()
    step = pt.partition(update, MESH, [ROWS_SPLIT], simulate=pt.Simulator("tpu-v5e"))
    plan = step.plan(state, batch)
    assert [op for op in plan.graph.program.ops if op.name == "ragged_dot_general"]
