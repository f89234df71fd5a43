"""Random numbers: each device draws its own part, and the values are those of the whole run."""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from troupe import partitioning as pt
from troupe.partitioning import models
from troupe.partitioning.ir.draws import _places
from troupe.partitioning.simulator.costs import program_flops

from .test_control_flow import check, x

MESH = pt.Mesh({"data": 4, "model": 2})


@pytest.mark.parametrize("bits", [8, 16, 32])
@pytest.mark.parametrize("batched", [False, True])
def test_bits_are_drawn_where_they_lie(bits: int, batched: bool) -> None:
    def fn(key: jax.Array) -> jax.Array:
        if batched:
            keys = jax.random.split(key, 8)
            drawn = jax.vmap(lambda k: jax.random.bits(k, (2, 6), f"uint{bits}"))(keys)
        else:
            drawn = jax.random.bits(key, (8, 2, 6), f"uint{bits}")
        return pt.tag(drawn, "bits")

    schedule = [pt.Manual("rows", {"bits": 0}, "data"), pt.Manual("columns", {"bits": 2}, "model")]
    plan = check(fn, jax.random.PRNGKey(0), schedule=schedule)
    assert sum(plan.collectives.values()) == 0
    whole = pt.partition(fn, MESH, []).plan(jax.random.PRNGKey(0)).program
    share = program_flops(plan.program) / program_flops(whole)
    assert share == pytest.approx(1 / 8, rel=0.1)


@pytest.mark.parametrize("kind", ["threefry2x32", "rbg", "unsafe_rbg"])
@pytest.mark.parametrize("partitionable", [True, False])
def test_every_generator_gives_what_it_gives_unpartitioned(kind: str, partitionable: bool) -> None:
    def fn(x: jax.Array, key: jax.Array) -> Any:
        keys = jax.random.split(key, 8)
        folded = jax.vmap(jax.random.fold_in)(keys, jnp.arange(8))
        more = jax.vmap(lambda k: jax.random.split(k, 3))(folded)
        each = jax.vmap(lambda k: jax.random.normal(k, (4,)))(more[:, 1])
        noise = jax.random.normal(key, x.shape)
        return x + noise, x * each, more

    with jax.threefry_partitionable(partitionable):
        check(fn, x(8, 4), jax.random.key(1, impl=kind))


def test_sharded_keys_stay_where_they_are() -> None:
    def fn(keys: jax.Array, x: jax.Array) -> Any:
        def each(key: jax.Array, row: jax.Array) -> Any:
            key, now, mask = jax.random.split(key, 3)
            kept = jax.random.bernoulli(mask, 0.5, row.shape)
            noise = jax.random.normal(jax.random.fold_in(now, 3), row.shape)
            return key, jnp.where(kept, row, noise)

        return jax.vmap(each)(keys, x)

    schedule = [pt.Manual("batch", {"keys": 0, "x": 0}, "data")]
    for keys in (
        jax.random.split(jax.random.key(0), 8),
        jax.random.split(jax.random.PRNGKey(0), 8),
    ):
        plan = check(fn, keys, x(8, 4), schedule=schedule)
        assert sum(plan.collectives.values()) == 0
        assert plan.output_shardings[0][0] == "data"


def test_dropout_adds_no_work_that_is_not_split() -> None:
    flops = {}
    for rate in (0.0, 0.1):
        example = models.make("transformer", batch=64, dropout=rate)
        step = pt.partition(
            example.update, pt.Mesh({"data": 64}), [pt.tactics.batch_parallel("data")]
        )
        plan = step.plan(example.state_shapes, example.batch_shapes)
        flops[rate] = program_flops(plan.program)
        assert plan.steps[-1].split["data"] >= 0.97
    assert flops[0.1] < 1.5 * flops[0.0]


@pytest.mark.parametrize(
    ("shape", "starts"), [((5, 3, 4), (2, 1, 0)), ((2**20, 2**20, 3), (2**20 - 2, 2**20 - 4, 1))]
)
def test_places_in_arrays_of_any_size(shape: tuple[int, ...], starts: tuple[int, ...]) -> None:
    sizes = (2, 2, 2)
    high, low = _places(shape, starts, sizes)
    for at in np.ndindex(sizes):
        place = 0
        for n, start, i in zip(shape, starts, at, strict=True):
            place = place * n + start + i
        assert (int(high[at]) << 32) + int(low[at]) == place < math.prod(shape)
