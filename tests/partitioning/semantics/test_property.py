"""Programs drawn at random: partitioned equals unpartitioned, the verifier holds, planning repeats
itself.

The same few are drawn in every run; 2000 others by
`TROUPE_FULL=1 python -m pytest tests/partitioning/semantics/test_property.py`, which prints how to
see a failure again.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings

from troupe import partitioning as pt
from troupe.partitioning.ir.verify import verify
from troupe.partitioning.lower.cleanup import clean_up
from troupe.partitioning.lower.lower import lower

from .random_foreign import CALLS, UNORDERED
from .random_programs import AXES, Drawn, programs, schedule

_LONG = bool(os.environ.get("TROUPE_FULL"))
_SETTINGS = {
    "deadline": None,
    "derandomize": not _LONG,
    "database": None,
    "suppress_health_check": list(HealthCheck),
}


def check_plan(drawn: Drawn) -> None:
    """Plans twice and verifies after every pass; runs nothing."""
    texts = []
    with drawn.settings():
        shapes = jax.eval_shape(lambda: drawn.inputs(0))
        for _ in range(2):
            step = pt.partition(drawn.function, pt.Mesh(AXES), schedule(drawn))
            plan = step.plan(*shapes)
            texts.append(step.lower_text())
        assert texts[0] == texts[1]
        local = lower(plan.graph, plan.state)
        verify(local, AXES, types=True)
        clean_up(local, AXES, after=lambda does, program: verify(program, AXES, types=True))


def _called(step: Callable[..., Any], inputs: Any) -> tuple[Any, list[float]]:
    """The results of a step, and what it called the host with: in order, where that is told."""
    CALLS.clear()
    UNORDERED.clear()
    results = jax.block_until_ready(step(*inputs))
    jax.effects_barrier()
    return results, [*CALLS, *np.sort(UNORDERED)]


def check_run(drawn: Drawn) -> None:
    """Runs on eight devices and compares with one: values, NaN, dtypes and weak types."""
    alone = dataclasses.replace(drawn, hints={})
    with alone.settings():
        inputs = drawn.inputs(0)
        expected, wanted = _called(jax.jit(alone.function), inputs)
    with drawn.settings():
        step = pt.partition(drawn.function, pt.Mesh(AXES), schedule(drawn))
        found, calls = _called(step, inputs)
    assert len(calls) == len(wanted)
    np.testing.assert_allclose(calls, wanted, rtol=2e-4, atol=2e-4)
    for want, have in zip(jax.tree.leaves(expected), jax.tree.leaves(found), strict=True):
        assert want.shape == have.shape
        assert (want.dtype, want.aval.weak_type) == (have.dtype, have.aval.weak_type)
        np.testing.assert_allclose(np.asarray(have), np.asarray(want), rtol=2e-4, atol=2e-4)


@settings(max_examples=2000 if _LONG else 60, **_SETTINGS)
@given(programs())
def test_plans_verify_and_repeat(drawn: Drawn) -> None:
    check_plan(drawn)


@pytest.mark.long
@settings(max_examples=2000 if _LONG else 20, **_SETTINGS)
@given(programs())
def test_partitioned_equals_unpartitioned(drawn: Drawn) -> None:
    check_run(drawn)
