"""Programs drawn at random: partitioned equals unpartitioned, the verifier holds, planning repeats
itself.
"""

from __future__ import annotations

import os

import jax
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings

from troupe import partitioning as pt
from troupe.partitioning.ir.verify import verify
from troupe.partitioning.lower.cleanup import clean_up
from troupe.partitioning.lower.lower import lower

from .random_foreign import CALLS
from .random_programs import AXES, Drawn, programs, schedule

_LONG = bool(os.environ.get("TROUPE_FULL"))
_SETTINGS = {
    "deadline": None,
    "derandomize": not _LONG,
    "database": None,
    "suppress_health_check": list(HealthCheck),
}


def _check_plan(drawn: Drawn) -> None:
    """Plans twice and verifies after every pass; runs nothing."""
    shapes = jax.eval_shape(lambda: drawn.inputs(0))
    texts = []
    for _ in range(2):
        step = pt.partition(drawn.function, pt.Mesh(AXES), schedule(drawn))
        plan = step.plan(*shapes)
        texts.append(step.lower_text())
    assert texts[0] == texts[1]
    local = lower(plan.graph, plan.state)
    verify(local, AXES, types=True)
    clean_up(local, AXES, after=lambda does, program: verify(program, AXES, types=True))


def _check_run(drawn: Drawn, backend: str = "explicit") -> None:
    """Runs on eight devices and compares with one."""
    inputs = drawn.inputs(0)
    CALLS.clear()
    expected = jax.block_until_ready(jax.jit(drawn.function)(*inputs))
    jax.effects_barrier()
    wanted = list(CALLS)
    CALLS.clear()
    step = pt.partition(drawn.function, pt.Mesh(AXES), schedule(drawn), backend=backend)
    found = jax.block_until_ready(step(*inputs))
    jax.effects_barrier()
    assert len(CALLS) == len(wanted)
    np.testing.assert_allclose(CALLS, wanted, rtol=2e-4, atol=2e-4)
    for want, have in zip(jax.tree.leaves(expected), jax.tree.leaves(found), strict=True):
        assert want.shape == have.shape
        assert want.dtype == have.dtype
        np.testing.assert_allclose(np.asarray(have), np.asarray(want), rtol=2e-4, atol=2e-4)


@settings(max_examples=2000 if _LONG else 250, **_SETTINGS)
@given(programs())
def test_plans_verify_and_repeat(drawn: Drawn) -> None:
    _check_plan(drawn)


@pytest.mark.long
@settings(max_examples=2000 if _LONG else 60, **_SETTINGS)
@given(programs())
def test_partitioned_equals_unpartitioned(drawn: Drawn) -> None:
    _check_run(drawn)
