"""Programs that compute activations again are the same programs, and need less memory."""

from __future__ import annotations

import dataclasses
import os
from typing import Any

import jax
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings

from troupe import partitioning as pt
from troupe.agents import examples
from troupe.partitioning import models
from troupe.partitioning.ir.execute import evaluate
from troupe.partitioning.ir.program import COLLECTIVES, Program
from troupe.partitioning.ir.verify import verify
from troupe.partitioning.rematerialization.recompute import Frontier
from troupe.partitioning.simulator.presets import get_device

from ...results import assert_equal_results, raw
from ..semantics.random_programs import AXES, Drawn, programs, schedule

_LONG = bool(os.environ.get("TROUPE_FULL"))
TOLERANCE = 1e-5  # Of the norm of each output, as in the semantics tests.
DEEP = {"num_layers": 4, "batch": 64, "length": 16, "width": 32, "vocabulary": 64}
MLP = {"num_layers": 6, "batch": 512, "width": 16, "hidden": 32, "optimizer": "adam"}


def planned(name: str, sizes: dict[str, Any], mesh: str, schedule: str, **options: Any) -> pt.Plan:
    example = examples.make(name, **sizes)
    step = pt.partition(
        example.update,
        pt.parse_mesh(mesh),
        pt.parse_schedule(schedule),
        donate=("state",),
        **options,
    )
    return step.plan(example.state_shapes, example.batch_shapes)


def frontier(plan: pt.Plan) -> Frontier:
    simulator = pt.Simulator("h200")
    return Frontier(
        plan.program,
        get_device("h200"),
        plan.donated,
        lambda program: simulator.predict(program, plan.mesh.axes, plan.donated),
    )


def regions(program: Program) -> list[Program]:
    return [r for op in program.walk() if op.name == "checkpoint" for r in op.regions]


def within(share: float, plan: pt.Plan) -> pt.Simulator:
    """A device whose memory is a share of what a plan needs."""
    nbytes = int(share * plan.steps[-1].simulation.peak_memory_bytes)
    return pt.Simulator(dataclasses.replace(get_device("h200"), memory_bytes=nbytes))


CASES = [
    ("mlp", MLP, "data=1", ""),
    ("transformer", {**DEEP, "dropout": 0.1}, "data=1", ""),
    ("transformer", {**DEEP, "scan": True}, "data=1", ""),
    ("impala", {"batch_size": 64, "rollout_length": 8}, "data=8", "batch:data"),
]
LARGER_CASES = [
    ("transformer", DEEP, "data=4,model=2", "batch:data,megatron:model,zero3:data"),
    ("sac", {"batch_size": 512}, "data=8", "batch:data,zero3:data"),
    ("ppo", {"num_envs": 16, "rollout_length": 16}, "data=8", "batch:data"),
]


@pytest.mark.parametrize(
    ("name", "sizes", "mesh", "schedule"),
    [*CASES, *(pytest.param(*case, marks=pytest.mark.long) for case in LARGER_CASES)],
)
def test_every_program_of_the_frontier_is_well_formed(
    name: str, sizes: dict[str, Any], mesh: str, schedule: str
) -> None:
    plan = planned(name, sizes, mesh, schedule)
    found = frontier(plan)
    text = str(plan.program)
    for i in range(0, len(found), 3):
        program, _ = found[i]
        verify(program, plan.mesh.axes, types=True)
        inside = {op.name for region in regions(program) for op in region.walk()}
        assert inside.isdisjoint(COLLECTIVES)
        assert [v.path for v in program.outputs] == [v.path for v in plan.program.outputs]
    assert str(plan.program) == text  # It is another program that was written.


@pytest.mark.parametrize(
    ("name", "sizes"),
    [("mlp", MLP), pytest.param("transformer", DEEP, marks=pytest.mark.long)],
)
def test_budgets_are_met_one_below_the_other(name: str, sizes: dict[str, Any]) -> None:
    plan = planned(name, sizes, "data=1", "")
    found = frontier(plan)
    whole = found[0][1]
    least = min(found[i][1].peak_memory_bytes for i in range(len(found)))
    seconds = []
    for share in np.linspace(1.0, least / whole.peak_memory_bytes, 9):
        index = found.first_within(share * whole.peak_memory_bytes)
        assert index is not None
        assert (index == 0) == (share == 1.0)
        assert found[index][1].peak_memory_bytes <= share * whole.peak_memory_bytes
        seconds.append(found[index][1].predicted_seconds.total)
    assert seconds[0] == whole.predicted_seconds.total
    # A GPU's compiler keeps none of what is cheap to compute anyway.
    assert least < 0.75 * whole.peak_memory_bytes
    assert found.first_within(0.99 * least) is None


@pytest.mark.long
def test_eight_layers_need_a_third_of_the_memory() -> None:
    sizes = {
        "num_layers": 8, "batch": 64, "width": 2048, "num_heads": 16, "length": 1024,
        "vocabulary": 32000, "dtype": "bfloat16", "optimizer": "adam", "clip": 1.0,
    }  # fmt: skip
    plan = planned("transformer", sizes, "data=1", "")
    found = frontier(plan)
    whole = found[0][1]
    index = found.first_within(0.33 * whole.peak_memory_bytes)
    assert index is not None
    simulation = found[index][1]
    assert simulation.predicted_seconds.total <= 4 / 3 * whole.predicted_seconds.total


def _equal(program: Program, other: Program, inputs: list[Any]) -> None:
    """Op by op, so that no compiler rounds anything in another way: the very same bits."""
    wanted, got = evaluate(program, inputs), evaluate(other, inputs)
    for want, have in zip(raw(wanted), raw(got), strict=True):
        np.testing.assert_array_equal(np.asarray(have), np.asarray(want))


# Unoptimized, an LSTM that is computed again was seen to differ in its last bits.
@pytest.mark.usefixtures("optimized")
@pytest.mark.parametrize(
    ("name", "sizes"),
    [
        ("mlp", MLP),
        pytest.param(
            "transformer", {**DEEP, "num_layers": 2, "dropout": 0.1}, marks=pytest.mark.long
        ),
        pytest.param("lstm", {}, marks=pytest.mark.long),
        *([pytest.param("sac", {}, marks=pytest.mark.long)] if _LONG else []),
    ],
)
def test_the_results_are_the_same_bits(name: str, sizes: dict[str, Any]) -> None:
    plan = planned(name, sizes, "data=1", "")
    found = frontier(plan)
    inputs = jax.tree.leaves(models.mid_training(examples.make(name, **sizes)))
    program, _ = found[len(found) - 1]
    assert program is not plan.program
    _equal(plan.program, program, inputs)


_SETTINGS = {
    "deadline": None,
    "derandomize": not _LONG,
    "database": None,
    "suppress_health_check": list(HealthCheck),
}


@settings(max_examples=500 if _LONG else 10, **_SETTINGS)
@given(programs())
def test_programs_drawn_at_random_verify(drawn: Drawn) -> None:
    drawn = dataclasses.replace(drawn, differentiate=True, hints={}, follow=None)
    step = pt.partition(drawn.function, pt.Mesh(AXES), schedule(drawn))
    found = frontier(step.plan(*jax.eval_shape(lambda: drawn.inputs(0))))
    for i in {len(found) // 2, len(found) - 1}:
        verify(found[i][0], AXES, types=True)


@pytest.mark.long
@settings(max_examples=200 if _LONG else 6, **_SETTINGS)
@given(programs())
def test_programs_drawn_at_random_keep_their_results(drawn: Drawn) -> None:
    drawn = dataclasses.replace(drawn, differentiate=True, hints={}, follow=None)
    inputs = drawn.inputs(0)
    plan = pt.partition(drawn.function, pt.Mesh(dict.fromkeys(AXES, 1)), []).plan(*inputs)
    found = frontier(plan)
    last = found[len(found) - 1][0]
    if last is not plan.program:
        _equal(plan.program, last, jax.tree.leaves(inputs))


@pytest.mark.parametrize(
    ("name", "sizes", "mesh", "schedule"),
    [
        ("mlp", MLP, "data=4,model=2", "batch:data,megatron:model,zero3:data"),
        ("transformer", {**DEEP, "scan": True}, "data=4,model=2", "batch:data,megatron:model"),
        pytest.param(
            "transformer", {**DEEP, "num_layers": 2}, "data=4,model=2", "batch:data,megatron:model",
            marks=pytest.mark.long,
        ),
    ],
)  # fmt: skip
def test_partitioned_steps_give_the_results_of_the_unpartitioned_one(
    name: str, sizes: dict[str, Any], mesh: str, schedule: str
) -> None:
    whole = planned(name, sizes, mesh, schedule)
    example = examples.make(name, **sizes)
    arguments = models.mid_training(example)
    step = pt.partition(
        example.update,
        pt.parse_mesh(mesh),
        pt.parse_schedule(schedule),
        simulate=within(0.9, whole),
        recompute=pt.Recompute(1.0),
        donate=(),
    )
    plan = step.plan(*arguments)
    assert plan.steps[-1].name == "recompute"
    assert plan.steps[-1].made.figures["regions"] > 0
    assert plan.collectives == whole.collectives
    assert "computed again" in str(plan)
    wanted = jax.jit(example.update)(*arguments)
    assert_equal_results(
        jax.device_get(raw(step(*arguments))), jax.device_get(raw(wanted)), TOLERANCE
    )


def test_nothing_is_done_where_memory_suffices() -> None:
    before = planned("mlp", MLP, "data=8", "batch:data")
    plan = planned("mlp", MLP, "data=8", "batch:data", recompute=pt.Recompute(0.9))
    assert str(plan.program) == str(before.program)
    assert "nothing is computed again" in str(plan)


def test_what_does_not_fit_is_told_with_what_it_needs() -> None:
    whole = planned("mlp", MLP, "data=8", "batch:data")
    with pytest.raises(ValueError, match=r"infeasible: the step needs at least .*iB of a device"):
        planned(
            "mlp", MLP, "data=8", "batch:data",
            simulate=within(0.05, whole), recompute=pt.Recompute(1.0),
        )  # fmt: skip


@pytest.mark.long
def test_a_search_finds_what_fits_where_no_listed_schedule_does() -> None:
    example = examples.make("transformer", **DEEP)
    peaks = []
    for listed in ("", *example.schedules):
        plan = planned("transformer", DEEP, "data=4,model=2", listed)
        peaks.append(plan.steps[-1].simulation.peak_memory_bytes)
    memory = int(0.95 * min(peaks))
    device = dataclasses.replace(get_device("h200"), memory_bytes=memory)
    found = pt.partition(
        example.update,
        pt.parse_mesh("data=4,model=2"),
        [
            *pt.parse_schedule("batch:data"),
            pt.Automatic(
                ("model", "data"),
                goal=pt.Goal(memory=1.0),
                budget=pt.Budget(estimates=60, judged=2),
            ),
        ],
        donate=("state",),
        simulate=pt.Simulator(device),
        recompute=pt.Recompute(1.0),
    ).plan(example.state_shapes, example.batch_shapes)
    assert found.steps[-1].simulation.fits
    assert found.steps[-1].made.figures["regions"] > 0


@pytest.mark.parametrize("memory", [0, 1.5, -1, "0.9", True])
def test_a_share_of_the_memory_is_between_nothing_and_all(memory: Any) -> None:
    with pytest.raises(ValueError, match=r"a share of the device's memory"):
        pt.Recompute(memory)
