"""Programs of the kinds that other people write: partitioned, they give what `jax.jit` gives.

A row is a function of the modules beside this one, in its `PROGRAMS`. Every row is called twice
under a schedule of batch, model and state and under one of the others in turn, the second time with
what the first left. Every other row is called before, under and after one of the other settings in
turn. With TROUPE_FULL=1 in the environment every row is called under all of them.
"""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.experimental
import numpy as np
import pytest

from troupe import partitioning as pt

from ...results import raw
from . import arrays, learners, networks, rollouts, updates
from .program import Program

FULL = bool(os.environ.get("TROUPE_FULL"))
ROWS = {
    name: make
    for module in (networks, learners, rollouts, updates, arrays)
    for name, make in module.PROGRAMS.items()
}
SCHEDULES = {
    "none": ("data=8", ""),
    "batch": ("data=8", "batch:data"),
    "all": ("data=4,model=2", "batch:data,megatron:model,zero3:data"),
    "automatic": ("data=2,model=2", "auto:data+model"),
}
#: The error of floats, as a part of their array's norm; greater where products are rounded to half.
TOLERANCE = 3e-5
TOLERANCES = {"loss_scaling": 5e-3, "brain_floats": 2e-2}
#: Rows that take longer than a few seconds: all of theirs is marked long.
LONG = {
    "selective_scan", "sorted_experts", "world_model", "conservative", "upper_half",
    "distributions", "physics", "whole_training", "population", "preconditioned", "derivatives",
    "generators",
}  # fmt: skip
#: Rows that `make quick` searches for a schedule, too, and that are called under all settings.
QUICK = ("filtered_modules", "guarded", "counters")


@functools.cache
def program(name: str) -> Program:
    return ROWS[name]()


def twice(step: Any, name: str) -> Any:
    """The results of two steps, the second from the state that the first left."""
    found = program(name)
    first = step(found.state, found.batch)
    return first, step(first[0], found.batch)


@functools.cache
def wanted(name: str) -> Any:
    return twice(jax.jit(program(name).step), name)


def check(found: Any, wanted: Any, tolerance: float) -> None:
    """Structure, shapes, dtypes and weak types are the same; integers, NaN and infinities too."""
    assert jax.tree.structure(found) == jax.tree.structure(wanted)
    pairs = zip(
        jax.tree_util.tree_leaves_with_path(raw(found)), jax.tree.leaves(raw(wanted)), strict=True
    )
    for (path, a), b in pairs:
        where = jax.tree_util.keystr(path)
        assert (a.shape, a.dtype) == (b.shape, b.dtype), where
        assert a.aval.weak_type == b.aval.weak_type, where
        if not jax.numpy.issubdtype(a.dtype, jax.numpy.inexact):
            np.testing.assert_array_equal(a, b, where)
            continue
        a, b = (np.asarray(x, np.complex128) for x in (a, b))
        finite = np.isfinite(b)
        np.testing.assert_array_equal(a[~finite], b[~finite], where)
        error, norm = np.linalg.norm(a[finite] - b[finite]), np.linalg.norm(b[finite])
        assert error <= tolerance * norm + 1e-6, f"{where}: error {error:.3g} of norm {norm:.3g}"


def partitioned(name: str, schedule: str) -> pt.Partitioned:
    mesh, tactics = SCHEDULES[schedule]
    return pt.partition(program(name).step, pt.parse_mesh(mesh), pt.parse_schedule(tactics))


def marked(name: str, quick: bool, *values: Any) -> Any:
    marks = [] if quick and name not in LONG else [pytest.mark.long]
    return pytest.param(name, *values, marks=marks)


def scheduled() -> Iterator[Any]:
    """Every row under "all", and under one of the others: each of these has a third of the rows."""
    others = [schedule for schedule in SCHEDULES if schedule != "all"]
    for place, name in enumerate(ROWS):
        for schedule in SCHEDULES:
            quick = schedule == "all" or (schedule == "automatic" and name in QUICK)
            if FULL or quick or schedule == others[place % len(others)]:
                yield marked(name, quick, schedule)


@pytest.mark.parametrize(("name", "schedule"), list(scheduled()))
def test_results_are_those_of_jit(name: str, schedule: str) -> None:
    found = twice(partitioned(name, schedule), name)
    check(found, wanted(name), TOLERANCES.get(name, TOLERANCE))


_x64 = jax.enable_x64 if hasattr(jax, "enable_x64") else jax.experimental.enable_x64
SETTINGS = (
    lambda: _x64(True),
    lambda: jax.default_matmul_precision("float32"),
    lambda: jax.threefry_partitionable(False),
)


def asked(name: str) -> tuple[Callable[[], Any], ...]:
    """Settings that a row is called under: all for the quick rows, for the others one in turn."""
    place = [*ROWS].index(name) // 2
    others = SETTINGS if FULL or name in QUICK else SETTINGS[place % len(SETTINGS) :][:1]
    return contextlib.nullcontext, *others, contextlib.nullcontext


def called() -> Iterator[Any]:
    """Every row, or every other one and the quick ones."""
    for place, name in enumerate(ROWS):
        if FULL or name in QUICK or place % 2 == 0:
            yield marked(name, name in QUICK)


@pytest.mark.parametrize("name", list(called()))
def test_results_are_those_of_jit_under_the_settings_of_a_call(name: str) -> None:
    step, state, batch = program(name)
    many, one = partitioned(name, "all"), jax.jit(step)
    for settings in asked(name):
        with settings():
            check(many(state, batch), one(state, batch), TOLERANCES.get(name, TOLERANCE))
