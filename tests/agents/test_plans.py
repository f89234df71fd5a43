"""Every row of the table of agents: the plan printed, checked and run is one value."""

import contextlib
import dataclasses
import json

import pytest

from troupe import launch
from troupe import partitioning as pt
from troupe.agents.programs import runtime
from troupe.launch import planning
from troupe.launch.local import components
from troupe.launch.specification.recipe import Recipe
from troupe.partitioning.choose import SCHEDULES

from .rows import CASES, CHECKED, FULL

pytestmark = pytest.mark.long
AUTO = pt.Automatic(("data",), budget=pt.Budget(estimates=20, judged=2))
PLACEMENTS = {
    "searched, recomputed": (pt.Mesh({"data": 8}), (AUTO,), pt.Recompute(0.9), None),
    "by hand, placed": (
        pt.Mesh({"data": 4, "model": 2}),
        tuple(pt.parse_schedule("batch:data,megatron:model,zero3:data")),
        None,
        "auto",
    ),
}


def run_plan(experiment):
    """The plan of the learner of a run in one process."""
    with contextlib.ExitStack() as stack:
        environment = stack.enter_context(components.make_environment(experiment, 0))
        return stack.enter_context(components.make(experiment, environment)).learner.plan


def placed():
    """Every other row with one of the placements in turn, or every one with all."""
    for place, name in enumerate(CHECKED if FULL else CHECKED[::2]):
        for placement in PLACEMENTS if FULL else [[*PLACEMENTS][place % len(PLACEMENTS)]]:
            yield name, placement


@pytest.mark.parametrize(("name", "placement"), list(placed()))
def test_one_plan_is_printed_checked_and_run(name, placement, monkeypatch):
    experiment = CASES[name].experiment()
    experiment = dataclasses.replace(experiment, partition=launch.Partition(*PLACEMENTS[placement]))
    spec = planning.spec_of(experiment)
    printed = planning.plan(experiment, spec)
    assert printed.summary()["donated"] == ["state"]
    assert printed.summary()["device"] == runtime.here().device_kind
    decided = planning.decided(experiment, spec, runtime.here())
    decisions = json.loads(json.dumps(decided.partition.decisions.to_json()))
    partition = dataclasses.replace(
        decided.partition, decisions=pt.PlanDecisions.from_json(decisions)
    )
    with monkeypatch.context() as patch:
        patch.setattr(pt.Automatic, "search", None)  # Who is handed a plan searches nothing.
        handed = run_plan(dataclasses.replace(experiment, partition=partition))
    assert printed.summary() == handed.summary()
    assert str(printed) == str(handed)
    assert str(printed.program) == str(handed.program)


@pytest.mark.parametrize("placement", PLACEMENTS)
def test_a_run_in_one_process_plans_what_is_printed(placement):
    experiment = CASES["sac, continuous"].experiment()
    experiment = dataclasses.replace(experiment, partition=launch.Partition(*PLACEMENTS[placement]))
    printed, ran = planning.plan(experiment), run_plan(experiment)
    assert printed.summary() == ran.summary()
    assert str(printed.program) == str(ran.program)


def test_it_is_planned_for_the_device_that_is_asked_for():
    experiment = CASES["dqn, discrete"].experiment()
    partition = launch.Partition(*PLACEMENTS["by hand, placed"], device="a100-80gb")
    experiment = dataclasses.replace(experiment, partition=partition)
    assert planning.plan(experiment).summary()["device"] == "a100-80gb"
    assert run_plan(experiment).summary()["device"] == "a100-80gb"


@pytest.mark.parametrize("mesh", ["data=8", "data=4,model=2"])
@pytest.mark.parametrize(("agent", "env"), [("dqn", "CartPole-v1"), ("sac", "Pendulum-v1")])
def test_a_search_is_as_good_as_what_is_listed_for_these_devices(agent, env, mesh):
    experiment = Recipe(agent, env).experiment()
    spec, shape = planning.spec_of(experiment), pt.parse_mesh(mesh)

    def seconds(schedule):
        partition = launch.Partition(shape, pt.parse_schedule(schedule))
        plan = planning.plan(dataclasses.replace(experiment, partition=partition), spec)
        return plan.summary()["predicted_seconds"]

    listed = [s for s in SCHEDULES if ("model" in s) == ("model" in shape.axes)]
    searched = "auto:" + "+".join(reversed(shape.axes))
    assert seconds(searched) <= 1.02 * min(map(seconds, listed))
