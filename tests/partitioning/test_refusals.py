"""What a plan refuses is listed in docs/rules.md, in the words of the errors."""

from __future__ import annotations

import pathlib
import re
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax import export

from troupe import partitioning as pt

PAGE = pathlib.Path(__file__).parents[2] / "docs" / "rules.md"
MESH = pt.Mesh({"data": 4})
ROWS = pt.Manual("rows", {"x": 0}, "data")


def f(*shape: Any) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, jnp.float32)


def planned(fn: Callable[..., Any], *shapes: Any, schedule: Any = (), **options: Any) -> pt.Plan:
    return pt.partition(fn, MESH, list(schedule), **options).plan(*shapes or (f(8, 6),))


def twice(x: jax.Array) -> jax.Array:
    return 2 * x


def by_hand(x: jax.Array) -> jax.Array:
    devices = jax.sharding.Mesh(jax.devices()[:4], ("i",))
    spec = jax.sharding.PartitionSpec("i")
    try:
        shard_map = jax.shard_map
    except AttributeError:  # jax 0.6
        from jax.experimental.shard_map import shard_map
    return shard_map(twice, mesh=devices, in_specs=spec, out_specs=spec)(x)


def ordered(x: jax.Array) -> jax.Array:
    jax.debug.callback(lambda _: None, x, ordered=True)
    return x


def in_doubles() -> Any:
    doubles = jax.enable_x64 if hasattr(jax, "enable_x64") else jax.experimental.enable_x64
    with doubles(True):
        return planned(returned, jax.ShapeDtypeStruct((8, 6), jnp.float64), schedule=[ROWS])


def returned(x: jax.Array) -> jax.Array:
    return jax.pure_callback(lambda x: x, jax.ShapeDtypeStruct(x.shape, x.dtype), x)


def within() -> Any:
    step = pt.partition(twice, MESH, [])
    return jax.jit(lambda x: step(x))(jnp.ones((8, 6)))


def symbolic() -> Any:
    (rows,) = export.symbolic_shape("rows")
    return planned(twice, f(rows, 6))


def contradicted() -> Any:
    return planned(twice, f(8, 8), schedule=[ROWS, pt.Manual("late", {"x": 1}, "data")])


def other_decisions() -> Any:
    decisions = planned(twice, schedule=[ROWS]).decisions
    return planned(twice, f(16, 6), schedule=[ROWS], decisions=decisions)


REFUSED: dict[str, Callable[[], Any]] = {
    "which is partitioned already, by hand": lambda: planned(by_hand),
    "is ordered, which jax does not do on several devices": lambda: planned(ordered),
    "which does not reach the threads": in_doubles,
    "the step was called within a transformation of jax's": within,
    "has the symbolic shape": symbolic,
    "which is no array": lambda: planned(twice, "text"),
    "does not divide by axis": lambda: planned(twice, f(7, 6), schedule=[ROWS]),
    "Earlier tactics win": contradicted,
    "matches no argument, path or tag": lambda: planned(
        twice, schedule=[pt.Manual("rows", {"y": 0}, "data")]
    ),
    "has no axis": lambda: planned(twice, schedule=[pt.Manual("rows", {"x": 0}, "dta")]),
    "which is no argument": lambda: planned(twice, donate=("y",)),
    "infeasible": lambda: planned(
        twice, f(1 << 20, 8), schedule=[ROWS], recompute=pt.Recompute(memory=1e-9)
    ),
    "the decisions were made for another step": other_decisions,
}


@pytest.mark.parametrize("words", REFUSED)
def test_it_is_refused_in_these_words(words: str) -> None:
    with pytest.raises((TypeError, ValueError), match=re.escape(words)):
        REFUSED[words]()


def test_the_page_lists_them() -> None:
    _, section = PAGE.read_text().split("## What is refused")
    rows = [line.split(" | ")[0] for line in section.splitlines() if line.startswith("| `")]
    assert [row.strip("| `") for row in rows] == list(REFUSED)


def test_callbacks_of_64_bits_run_where_no_other_thread_calls() -> None:
    """On one device; where the whole process has 64 bits; and of 32 bits within enable_x64."""
    doubles = jax.enable_x64 if hasattr(jax, "enable_x64") else jax.experimental.enable_x64
    wide = jax.ShapeDtypeStruct((8, 6), jnp.float64)
    with doubles(True):
        assert planned(returned, schedule=[ROWS])
        assert pt.partition(returned, pt.Mesh({"data": 1}), [ROWS]).plan(wide)
    jax.config.update("jax_enable_x64", True)
    try:
        assert planned(returned, wide, schedule=[ROWS])
    finally:
        jax.config.update("jax_enable_x64", False)
