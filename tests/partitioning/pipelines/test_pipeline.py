"""`pt.Pipeline` in a schedule: the step stays one function, and equal to the unpartitioned one."""

from __future__ import annotations

import json
import os
import pathlib
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from troupe import partitioning as pt
from troupe.agents import examples
from troupe.partitioning.pipelines.schedules.named import gpipe

from ... import results
from ...results import assert_equal_results, raw

H100 = pt.Simulator("h100")
FULL = bool(os.environ.get("TROUPE_FULL"))
STAGES = pt.Mesh({"stage": 2})
LONG = pytest.mark.long


def example(name: str, **sizes: Any) -> tuple[Any, Any, Any]:
    made = examples.make(name, **sizes)
    key = jax.random.PRNGKey(0)
    batch = made.make_batch(key)
    if name == "grpo":
        # Whole groups of answers, as those of the example have neither a beginning nor an end.
        data, keys = batch.data, iter(jax.random.split(key, 3))
        tokens = (data.action, data.observation["prompt"], data.observation["solution"])
        answers, *others = (jax.random.randint(next(keys), x.shape, 2, 32, x.dtype) for x in tokens)
        observation = {**data.observation, **dict(zip(("prompt", "solution"), others, strict=True))}
        kinds = jnp.broadcast_to(jnp.array([0, 2, 0], jnp.int32), data.step_type.shape)
        data = data._replace(observation=observation, action=answers, step_type=kinds)
        batch = batch._replace(data=data)
    return made.update, made.init(key), batch


def follow(step: Any, update: Any, state: Any, batch: Any, times: int = 2) -> Any:
    """Runs both for some steps and compares them; returns the state."""
    return results.follow(step, update, state, batch, 5e-5, least=1e-3, times=times)


#: Agents whose updates are pipelines, each with the bytes of its state that all stages hold, and
#: how often a step sends its micro-batches through.
PIPELINED = {
    "bc": (4, 1), "c51": (8, 1), "cql": (36, 2), "crr": (16, 1), "d4pg": (12, 2), "dqn": (8, 1),
    "grpo": (6160, 2), "impala": (4, 1), "iql": (8, 1), "mpo": (48, 1), "muzero": (8, 6),
    "ppo": (16, 9), "qrdqn": (8, 1), "r2d2": (8, 1), "rainbow": (16, 1), "sac": (36, 2),
    "td3": (84, 2),
}  # fmt: skip
#: Sizes that differ from those of the examples. With a small epsilon Adam has steps of the sign of
#: gradients that are rounding.
SIZES = {name: {"adam_epsilon": 1e-3} for name in ("cql", "d4pg", "grpo", "ppo", "sac", "td3")}


#: Those that run: of one phase, of two and of nine, and one with a memory. The others are planned,
#: and run with TROUPE_FULL=1.
RUN = PIPELINED.keys() if FULL else {"mpo", "ppo", "r2d2", "td3"}


@pytest.mark.parametrize(
    "agent",
    [
        name if name in ("mpo", "ppo", "td3") else pytest.param(name, marks=LONG)
        for name in PIPELINED
    ],
)
def test_updates_of_agents(agent: str) -> None:
    update, state, batch = example(agent, **SIZES.get(agent, {}))
    schedule = [pt.Pipeline("stage", microbatches=2)]
    step = pt.partition(update, STAGES, schedule, donate=("state",), simulate=H100)
    plan = step.plan(state, batch)
    figures = json.loads(plan.to_json())["steps"][-1]["pipeline"]
    assert (f"in each of {figures['phases']} phases" in str(plan)) == (figures["phases"] > 1)
    assert (figures["shared_state_bytes"], figures["phases"]) == PIPELINED[agent]
    if agent in RUN:
        follow(step, update, state, batch)


@pytest.mark.skipif(not FULL, reason="every agent of several phases; set TROUPE_FULL=1")
@pytest.mark.parametrize("tactics", ["batch:data", "batch:data,zero3:data"])
@pytest.mark.parametrize("name", ["gpipe", "1f1b", "zero-bubble"])
@pytest.mark.parametrize("agent", SIZES)
def test_phases_behind_other_tactics(agent: str, name: str, tactics: str) -> None:
    update, state, batch = example(agent, **SIZES[agent])
    schedule = [*pt.parse_schedule(tactics), pt.Pipeline("stage", 2, name)]
    mesh = pt.Mesh({"data": 2, "stage": 2})
    step = pt.partition(update, mesh, schedule, donate=("state",), simulate=H100)
    follow(step, update, state, batch)


@pytest.mark.parametrize("agent", ["dqn", pytest.param("mpo", marks=LONG)])
def test_several_forwards_of_agents(agent: str) -> None:
    update, state, batch = example(agent)
    schedule = [pt.Pipeline("stage", 2, "3f1b")]
    step = pt.partition(update, STAGES, schedule, donate=("state",), simulate=H100)
    figures = json.loads(step.plan(state, batch).to_json())["steps"][-1]["pipeline"]
    # Double Q-learning runs the online network on what follows, too.
    assert figures["segments"] == 2 * {"dqn": 3, "mpo": 2}[agent]
    assert figures["shared_state_bytes"] == PIPELINED[agent][0]
    follow(step, update, state, batch)


def test_cuts_are_where_they_are_named() -> None:
    update, state, batch = example("mlp", num_layers=4)
    schedule = [pt.Pipeline("stage", 4, cuts=("state/params/layer_1/**",))]
    plan = pt.partition(update, STAGES, schedule, simulate=H100).plan(state, batch)
    for layer in range(4):
        where = f"lies on stage {min(layer, 1)} of axis"
        assert where in plan.explain(f"state/params/layer_{layer}/up/w")


def test_the_table_of_agents_is_that_of_the_documentation() -> None:
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in (pathlib.Path(__file__).parents[3] / "docs/pipelines.md")
        .read_text()
        .split("\n")
        if line.startswith("| `")
    ]
    told = {
        name.strip("`"): answer == "yes"
        for names, answer, *_ in rows
        if answer == "yes" or answer.startswith("no")
        for name in names.split(", ")
    }
    assert told == dict.fromkeys(PIPELINED, True)
    assert told.keys() == {*examples.AGENTS, *examples.FURTHER}


@pytest.mark.parametrize("tactics", ["batch:data,zero3:data", "batch:data,megatron:model"])
def test_behind_other_tactics(tactics: str) -> None:
    update, state, batch = example("transformer", num_layers=2, vocabulary=16, clip=1.0)
    mesh = pt.Mesh({"data": 2, "stage": 2, "model": 2})
    schedule = [*pt.parse_schedule(tactics), pt.Pipeline("stage", 2, "zero-bubble")]
    follow(pt.partition(update, mesh, schedule, simulate=H100), update, state, batch)


def test_a_state_goes_on_without_stages() -> None:
    update, state, batch = example("mlp", num_layers=4, optimizer="adam")
    schedule = [pt.Pipeline("stage", 4)]
    step = pt.partition(update, STAGES, schedule, donate=("state",), simulate=H100)
    state = follow(step, update, state, batch)
    devices = {leaf.sharding for leaf in jax.tree.leaves(state["params"])}
    assert len(devices) == 2
    saved = jax.device_get(state)
    data = pt.partition(update, pt.Mesh({"data": 4}), pt.parse_schedule("batch:data"))
    after, _ = data(saved, batch)
    again, _ = step(saved, batch)
    assert_equal_results(raw(again), raw(after), 2e-5, least=1e-3)


def test_donated_state_is_given_away() -> None:
    update, state, batch = example("mlp", num_layers=4)
    step = pt.partition(update, STAGES, [pt.Pipeline("stage", 4)], donate=("state",), simulate=H100)
    state, _ = step(state, batch)
    step(state, batch)
    assert all(leaf.is_deleted() for leaf in jax.tree.leaves(state["params"]))


def test_the_plan_tells_of_stages() -> None:
    update, state, batch = example("mlp", num_layers=4, batch=64, width=64, hidden=256)
    table = gpipe(4, 8)
    schedule = [pt.Pipeline("stage", 8, table)]
    mesh = pt.Mesh({"stage": 4})
    step = pt.partition(update, mesh, schedule, donate=("state",), simulate=H100)
    plan = step.plan(state, batch)
    text = str(plan)
    assert "pipeline" in text
    assert "4 segments on 4 stages, 8 micro-batches in 22 steps" in text
    figures = json.loads(plan.to_json())["steps"][-1]["pipeline"]
    # A layer of two matrices on each stage.
    assert figures["state_bytes"] == [2 * 64 * 256 * 4] * 4
    assert figures["shared_state_bytes"] == 4  # the optimizer's count of steps
    assert "lies on stage 2 of axis 'stage'" in plan.explain("state/params/layer_2/up/w")
    again = pt.partition(update, mesh, schedule, donate=("state",), decisions=plan.decisions)
    assert str(again.plan(state, batch)) == text


def test_memory_of_a_stage_is_what_the_compiler_needs() -> None:
    update, state, batch = example(
        "mlp", num_layers=4, batch=512, width=128, hidden=512, optimizer="adam"
    )
    step = pt.partition(update, STAGES, [pt.Pipeline("stage", 4)], donate=("state",), simulate=H100)
    memory = step.lower(state, batch).compile().memory_analysis()
    compiled = (
        memory.argument_size_in_bytes + memory.output_size_in_bytes
        + memory.temp_size_in_bytes - memory.alias_size_in_bytes
    )  # fmt: skip
    predicted = step.plan(state, batch).steps[-1].simulation.peak_memory_bytes
    assert predicted == pytest.approx(compiled, rel=0.15)


@pytest.mark.parametrize(
    ("pipeline", "message"),
    [
        (lambda: pt.Pipeline("stage", 3), "do not divide into 3 micro-batches"),
        (lambda: pt.Pipeline("stages", 4), "no axis 'stages'"),
        (lambda: pt.Pipeline("stage", 4, gpipe(4, 4)), "of 4 devices, the axis has 2"),
        (lambda: pt.Pipeline("stage", 8, gpipe(2, 4)), "with a table of 4"),
        (lambda: pt.Pipeline("stage", 0), "at least 1"),
        (lambda: pt.Pipeline("stage", 4, "2f2b"), "there are gpipe, 1f1b"),
        (lambda: pt.Pipeline("stage", 4, "3f1b"), "the step has one forward pass"),
        (lambda: pt.Pipeline("stage", 4, cuts=("a", "b")), "has 2 paths, and the table 2 segments"),
        (lambda: pt.Pipeline("stage", 4, cuts=("**/layer_7/*",)), "no product of the step"),
        (lambda: pt.Pipeline("stage", 4, cuts=("**/layer_0/**",)), "nothing stands before it"),
    ],
)
def test_what_cannot_be(pipeline: Any, message: str) -> None:
    update, state, batch = example("mlp", num_layers=2)
    with pytest.raises(ValueError, match=message):
        pt.partition(update, STAGES, [pipeline()], simulate=H100).plan(state, batch)


def test_a_pipeline_stands_alone_and_last() -> None:
    update, state, batch = example("mlp", num_layers=2)
    mesh = pt.Mesh({"data": 2, "stage": 2})
    wrong = [pt.Pipeline("stage", 2), *pt.parse_schedule("batch:data")]
    with pytest.raises(ValueError, match="one pipeline comes last"):
        pt.partition(update, mesh, wrong).plan(state, batch)
    taken = [*pt.parse_schedule("megatron:stage"), pt.Pipeline("stage", 2)]
    with pytest.raises(ValueError, match="stages need an axis of their own"):
        pt.partition(update, mesh, taken).plan(state, batch)
    with pytest.raises(ValueError, match="recompute does not go with a pipeline"):
        pt.partition(update, mesh, [pt.Pipeline("stage", 2)], recompute=pt.Recompute()).plan(
            state, batch
        )


def test_the_number_of_micro_batches_is_found() -> None:
    update, state, batch = example("mlp", num_layers=2, batch=12)
    plan = pt.partition(update, STAGES, pt.parse_schedule("pipeline:stage")).plan(state, batch)
    # At most four a stage, and twelve rows divide by six.
    assert plan.pipeline is not None
    assert plan.pipeline.table.microbatches == 6


def test_calls_of_the_host_are_refused() -> None:
    update, state, batch = example("mlp", num_layers=2)

    def telling(state: Any, batch: Any) -> Any:
        jax.debug.print("{}", batch["x"].sum())
        return update(state, batch)

    with pytest.raises(ValueError, match=r"test_pipeline.py:\d+ calls the host"):
        pt.partition(telling, STAGES, [pt.Pipeline("stage", 2)]).plan(state, batch)


def test_a_schedule_and_a_number_are_read():
    """Behind the axis, in either order."""
    (plain,) = pt.parse_schedule("pipeline:stage")
    assert plain == pt.Pipeline("stage")
    (read,) = pt.parse_schedule("pipeline:stage+zero-bubble+16")
    assert read == pt.Pipeline("stage", 16, "zero-bubble")
    (other,) = pt.parse_schedule("pipeline:stage+8")
    assert other == pt.Pipeline("stage", 8)
    with pytest.raises(ValueError, match=r"pipeline:stage\+8\+16: write an axis, and behind it"):
        pt.parse_schedule("pipeline:stage+8+16")
    with pytest.raises(ValueError, match=r"schedule='1f2b'"):
        pt.parse_schedule("pipeline:stage+1f2b")
