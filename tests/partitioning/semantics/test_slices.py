"""Slices that begin where it is told at run time, of which every device takes its share."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from troupe import partitioning as pt

# Compiled as users' programs are: XLA makes one slice of two, and clamps what it should not.
pytestmark = pytest.mark.usefixtures("optimized")

ARRAY = np.arange(64.0, dtype=np.float32).reshape(8, 8)


def _slice(x: Any, row: Any, column: Any) -> Any:
    return lax.dynamic_slice(x, (row, column), (8, 4))


def _looped(x: Any, row: Any, column: Any) -> Any:
    parts = lax.scan(lambda at, _: (at + 3, _slice(x, row, at)), column, None, length=2)[1]
    return parts.sum(0)


@pytest.mark.parametrize("dim", [0, 1])
@pytest.mark.parametrize("function", [_slice, _looped])
def test_what_begins_too_late_is_the_last_that_there_is(function: Any, dim: int) -> None:
    def step(x: Any, row: Any, column: Any) -> Any:
        return pt.tag(function(x, row, column), "part") * 2

    schedule = [pt.Manual(axis, {"part": dim}, axis) for axis in ("a", "b")]
    partitioned = pt.partition(step, pt.Mesh({"a": 2, "b": 2}), schedule)
    for row, column in ((0, 0), (0, 3), (0, 6), (5, 4), (-2, -3), (99, 99), (-99, -99)):
        arguments = (ARRAY, jnp.int32(row), jnp.int32(column))
        wanted = _in_numpy(function, *(int(x) for x in (row, column))) * 2
        np.testing.assert_array_equal(partitioned(*arguments), wanted)
        np.testing.assert_array_equal(jax.jit(step)(*arguments), wanted)


def _in_numpy(function: Any, row: int, column: int) -> np.ndarray:
    """Row is that of all rows: there is one place for them."""
    found = 0
    for at in (column, column + 3) if function is _looped else (column,):
        start = int(np.clip(at + 8 if at < 0 else at, 0, 4))
        found = found + ARRAY[:, start : start + 4]
    return found
