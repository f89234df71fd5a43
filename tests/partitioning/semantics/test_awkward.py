"""Work stays split where a batch is split, merged, shuffled or picked from; results are equal."""

from __future__ import annotations

import functools
import os
from typing import Any

import jax
import numpy as np
import pytest

from troupe import partitioning as pt

from .awkward_steps import CASES, Case

MESH = pt.Mesh({"data": 8})

#: All-reduces, all-gathers, reduce-scatters and all-to-alls of each case over eight devices.
COUNTS = {
    # Six gradients and the loss; rows and labels are gathered where the split does not divide.
    "accumulation 4": (10, 2, 0, 0),
    "accumulation 8": (14, 0, 0, 2),
    "accumulation 3": (9, 2, 0, 0),
    "accumulation by slices": (6, 2, 0, 0),
    # As vmap of the same: nothing but six gradients and the loss.
    "picked rows": (7, 0, 0, 0),
    "picked rows, vmapped": (7, 0, 0, 0),
    # Each array is gathered once for all epochs.
    "time major, 16": (108, 5, 0, 2),
    "time major, 5": (108, 6, 0, 0),
    "recurrent minibatches": (48, 4, 0, 0),
    "ppo": (304, 6, 0, 0),
    "ppo, recurrent": (248, 8, 0, 0),
    "impala": (17, 0, 0, 0),
    "impala, transformer": (36, 0, 0, 0),
    "d4pg": (15, 0, 0, 0),
    "mpo": (18, 0, 0, 0),
    "sac": (17, 0, 0, 0),
    "td3": (14, 0, 0, 0),
    "dropout": (23, 0, 0, 0),
}


@functools.cache
def case(name: str) -> Case:
    return CASES[name]()


@functools.cache
def partitioned(name: str) -> pt.Partitioned:
    found = case(name)
    return pt.partition(found.update, MESH, [pt.tactics.batch_parallel("data", dim=found.dim)])


def raw(tree: Any) -> list[Any]:
    """The leaves, typed keys as their data."""
    return [
        jax.random.key_data(x) if jax.dtypes.issubdtype(x.dtype, jax.dtypes.prng_key) else x
        for x in jax.tree.leaves(tree)
    ]


@pytest.mark.parametrize("name", CASES)
def test_the_work_is_split(name: str) -> None:
    found = case(name)
    step = partitioned(name).plan(found.state, found.batch).steps[-1]
    assert step.split["data"] >= 0.97, "\n".join(step.remarks())
    assert tuple(step.collectives.values()) == COUNTS[name]


#: Run always; the others with TROUPE_FULL=1 in the environment.
RUN = ("accumulation 4", "accumulation 8", "picked rows", "time major, 5")


@pytest.mark.parametrize("name", CASES if "TROUPE_FULL" in os.environ else RUN)
def test_results_are_those_of_one_device(name: str) -> None:
    found = case(name)
    got = partitioned(name)(found.state, found.batch)
    wanted = jax.jit(found.update)(found.state, found.batch)
    for a, b in zip(raw(got), raw(wanted), strict=True):
        a, b = np.asarray(a, np.float64), np.asarray(b, np.float64)
        assert np.linalg.norm(a - b) <= 1e-5 * np.linalg.norm(b) + 1e-6


@pytest.mark.parametrize("writes", [False, True])
def test_rows_drawn_from_a_store_in_the_state_are_split(writes: bool) -> None:
    """A replay in the state, whose rows lie over the devices: what was drawn is spread again."""
    rows, batch, width = 1024, 256, 32

    def update(state: Any, new: Any) -> Any:
        key, drawn = jax.random.split(state["key"])
        at = jax.random.randint(drawn, (batch,), 0, rows)
        store = state["store"]
        if writes:
            start = state["count"] % (rows - 8)
            store = jax.lax.dynamic_update_slice(store, new, (start, 0))
        x = store[at]

        def loss(params: Any) -> Any:
            return ((jax.numpy.tanh(x @ params["up"]) @ params["down"]) ** 2).mean()

        value, grads = jax.value_and_grad(loss)(state["params"])
        params = jax.tree.map(lambda p, g: p - 0.1 * g, state["params"], grads)
        kept = {"key": key, "store": store, "count": state["count"] + 8}
        return {**state, **kept, "params": params}, value

    random = np.random.default_rng(0)
    normal = [random.normal(size=s).astype(np.float32) for s in ((rows, width), (8, width))]
    params = {
        "up": random.normal(size=(width, 128)).astype(np.float32) / 6,
        "down": random.normal(size=(128, width)).astype(np.float32) / 11,
    }
    key = jax.random.key(0)
    state = {"store": normal[0], "params": params, "key": key, "count": np.int32(3)}
    whole, split = (
        pt.partition(update, MESH, schedule)
        for schedule in ([], [pt.Manual("rows", {"state/store": 0}, "data")])
    )
    last = split.plan(state, normal[1]).steps[-1]
    before = whole.plan(state, normal[1]).steps[-1]
    assert last.simulation.flops / before.simulation.flops <= 0.2
    got, wanted = split(state, normal[1]), jax.jit(update)(state, normal[1])
    assert got[0]["store"].sharding.spec == jax.sharding.PartitionSpec("data")
    for a, b in zip(raw(got), raw(wanted), strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("mesh", "schedule"),
    [
        ("data=8", "batch:data"),
        ("model=8", "expert:model"),
        ("data=4,model=2", "batch:data,expert:model"),
    ],
)
def test_experts_with_capacity_by_scatter_are_split(mesh: str, schedule: str) -> None:
    """Tokens are added into slots of experts, and taken back: tokens, slots and experts split."""
    jnp = jax.numpy
    tokens, experts, slots, width, hidden = 128, 8, 24, 16, 64

    def routed(params: Any, x: Any) -> Any:
        scores = x @ params["router"]
        expert = jnp.argmax(scores, -1)
        places = jnp.cumsum(jax.nn.one_hot(expert, experts, dtype=jnp.int32), 0)
        slot = jnp.take_along_axis(places, expert[:, None], 1)[:, 0] - 1
        full = jnp.zeros((experts, slots, width)).at[expert, slot].add(x, mode="drop")
        full = jax.nn.relu(jnp.einsum("ecd,edh->ech", full, params["up"]))
        full = jnp.einsum("ech,ehd->ecd", full, params["down"])
        back = full.at[expert, slot].get(mode="fill", fill_value=0)
        return back * jax.nn.softmax(scores).max(-1, keepdims=True)

    def update(state: Any, batch: Any) -> Any:
        def loss(params: Any) -> Any:
            return ((routed(params, batch["x"]) - batch["y"]) ** 2).mean()

        value, grads = jax.value_and_grad(loss)(state)
        return jax.tree.map(lambda p, g: p - 0.1 * g, state, grads), value

    random = np.random.default_rng(0)

    def normal(*shape: int) -> np.ndarray:
        return random.normal(size=shape).astype(np.float32) / shape[-2] ** 0.5

    state = {
        "router": normal(width, experts),
        "up": normal(experts, width, hidden),
        "down": normal(experts, hidden, width),
    }
    batch = {"x": 9 * normal(tokens, width), "y": normal(tokens, width)}
    shape = pt.parse_mesh(mesh)
    whole, split = (
        pt.partition(update, shape, tactics) for tactics in ([], pt.parse_schedule(schedule))
    )
    last, before = (step.plan(state, batch).steps[-1].simulation for step in (split, whole))
    assert last.flops / before.flops <= 0.2
    got, wanted = split(state, batch), jax.jit(update)(state, batch)
    for a, b in zip(raw(got), raw(wanted), strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-4, atol=1e-5)
