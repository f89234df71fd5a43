"""A table run in one program of all devices is the step that was cut."""

from __future__ import annotations

import re
from functools import partial
from typing import Any

import jax
import pytest

from troupe.partitioning.decide.actions import Context
from troupe.partitioning.decide.repropagate import apply_tactic
from troupe.partitioning.decide.sharding import Decisions
from troupe.partitioning.mesh import Mesh
from troupe.partitioning.pipelines.execution.run import PipelineRun
from troupe.partitioning.pipelines.execution.spmd import PipelineProgram
from troupe.partitioning.pipelines.schedules.named import (
    dualpipe_v,
    gpipe,
    interleaved,
    one_f_one_b,
    passes_of,
    zero_bubble,
)
from troupe.partitioning.pipelines.stages.staging import cut_step, op_seconds, split_step
from troupe.partitioning.pipelines.table import PipelineTable
from troupe.partitioning.simulator.attach import Simulator
from troupe.partitioning.tactics import parse_schedule

from ...results import assert_equal_results
from .steps import doubles, example, graph, wide

STAGES = Mesh({"stage": 4})


def pipelined(
    update: Any, arguments: Any, mesh: Mesh, table: PipelineTable, schedule: str = ""
) -> PipelineRun:
    made = graph(update, arguments)
    decisions = Decisions(mesh.axes)
    for index, tactic in enumerate(parse_schedule(schedule)):
        decisions.tactic = index
        context = Context(made, decisions, (tactic.name,) * (index + 1))
        apply_tactic(context, tactic.actions(context), tactic.axis, made.work)
    dependence, forwards = split_step(made, decisions, table.microbatches), passes_of(table)
    stages = table.segments // forwards
    seconds = partial(op_seconds, dependence.program, Simulator("h100"), decisions.mesh)
    step = cut_step(dependence, stages, seconds, forwards=forwards)
    state = [(list(made.program.inputs).index(before), at) for before, _, at in made.state]
    return PipelineRun(PipelineProgram(step, table, "stage", mesh.axes, state), mesh)


def check(
    update: Any,
    arguments: Any,
    mesh: Mesh,
    table: PipelineTable,
    tolerance: float,
    schedule: str = "",
    steps: int = 2,
) -> PipelineRun:
    run = pipelined(update, arguments, mesh, table, schedule)
    state, batch = wanted, _ = arguments
    jitted = jax.jit(update)
    for _ in range(steps):
        leaves = run(jax.tree.leaves((state, batch)))
        wanted, metrics = jitted(wanted, batch)
        state, found = jax.tree.unflatten(jax.tree.structure((wanted, metrics)), leaves)
    assert_equal_results(
        jax.device_get((state, found)), jax.device_get((wanted, metrics)), tolerance, least=1e-3
    )
    return run


TABLES = {
    "gpipe": gpipe(4, 8),
    "1f1b": one_f_one_b(4, 8),
    "interleaved": interleaved(2, 4, 2),
    "zero bubble": zero_bubble(4, 8),
    "dualpipe-v": dualpipe_v(2, 4),
}


@pytest.mark.parametrize("name", TABLES)
def test_schedules_of_an_uneven_network(name: str) -> None:
    with doubles(True):
        table = TABLES[name]
        mesh = Mesh({"stage": table.devices})
        update, arguments = example("mlp", num_layers=5, optimizer="adam", clip=1.0, bias=True)
        check(update, wide(arguments), mesh, table, 1e-9)


def test_state_lies_on_the_devices_of_its_stage() -> None:
    update, arguments = example("mlp", num_layers=4, optimizer="adam")
    run = pipelined(update, arguments, STAGES, one_f_one_b(4, 4))
    state, _ = jax.tree.unflatten(
        jax.tree.structure(jax.eval_shape(update, *arguments)),
        run(jax.tree.leaves(arguments)),
    )
    devices = STAGES.devices()
    for tree in (state["params"], state["opt"]["mu"], state["opt"]["nu"]):
        for i in range(4):
            for leaf in jax.tree.leaves(tree[f"layer_{i}"]):
                assert leaf.sharding.device_set == {devices[i]}


def test_a_transformer_with_dropout_and_a_tied_head() -> None:
    update, arguments = example(
        "transformer", num_layers=2, dropout=0.1, tied=True, clip=1.0, vocabulary=16
    )
    check(update, arguments, Mesh({"stage": 2}), one_f_one_b(2, 4), 2e-5)


@pytest.mark.parametrize(
    "schedule", ["batch:data", "batch:data,zero3:data", "megatron:data", "batch:data,zero2:data"]
)
def test_with_tactics_on_another_axis(schedule: str) -> None:
    update, arguments = example("mlp", num_layers=4, optimizer="adam", clip=1.0)
    mesh = Mesh({"data": 2, "stage": 2})
    check(update, arguments, mesh, one_f_one_b(2, 4), 2e-5, schedule)


def test_live_activations_are_those_of_the_table() -> None:
    update, arguments = example("mlp", num_layers=4)
    for table, live in ((gpipe(4, 4), 4), (one_f_one_b(4, 4), 4), (one_f_one_b(4, 8), 4)):
        run = pipelined(update, arguments, STAGES, table)
        assert run.program.phases[0][0].routes.slots["forward", 0] == live


def test_the_program_does_not_grow_with_micro_batches() -> None:
    sizes = []
    for microbatches in (4, 16):
        update, arguments = example("mlp", num_layers=2)
        run = pipelined(update, arguments, Mesh({"stage": 2}), one_f_one_b(2, microbatches))
        text = str(jax.make_jaxpr(run.step)(*_shapes(run)))
        sizes.append(len(re.findall(r" = \w+", text)))
    assert sizes[0] == sizes[1]


def _shapes(run: PipelineRun) -> Any:
    program = run.program
    others = [v for v in program.step.program.inputs if v not in program.after]
    return run.packing.shapes, [run.packing.shape(v) for v in others]


def test_steps_without_messages_exchange_none():
    """Of two stages every other step of 1F1B has messages, and the program sends in no others."""
    update, arguments = example("mlp", batch=16, num_layers=4)
    run = pipelined(update, arguments, Mesh({"stage": 2}), one_f_one_b(2, 4))
    ((phase, _),) = run.program.phases
    sends = phase.routes.sends(("message", 1)).tolist()
    assert False in sends
    assert sends.count(True) <= 2 * 4
    sets, of_step = phase.routes.patterns()
    assert [bool(sets[i]) for i in of_step] == sends


def test_what_a_cell_adds_is_one_update():
    """Each of many updates of a flat array may copy all of it."""
    update, arguments = example("mlp", batch=16, num_layers=8)
    run = pipelined(update, arguments, Mesh({"stage": 2}), one_f_one_b(2, 4))
    ((phase, _),) = run.program.phases
    program = run.program
    others = [
        jax.ShapeDtypeStruct(program.whole_shape(v), v.dtype)
        for v in program.step.program.inputs
        if v not in program.after
    ]
    text = str(jax.make_jaxpr(run.step)(run.packing.shapes, others))
    (size,) = phase.sums.values()
    whole = re.findall(rf"f32\[{size}\] = dynamic_update_slice", text)
    cells = sum(1 for work in phase.phase.cells.values() if work.added)
    assert 0 < len(whole) <= 2 * cells
