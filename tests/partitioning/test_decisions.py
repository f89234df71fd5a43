"""A plan's decisions travel: another process makes the same plan of them, and does not search.

Run as a script, this file is that other process.
"""

from __future__ import annotations

import dataclasses
import json
import pathlib
import pickle
import subprocess
import sys
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from troupe import partitioning as pt
from troupe.partitioning import models
from troupe.partitioning.placement.place import Hierarchy
from troupe.partitioning.rematerialization.recompute import Frontier
from troupe.partitioning.simulator.topology import Measured
from troupe.partitioning.tactics import NAMED
from troupe.partitioning.tactics.search.tree import Search

SMALL = {"num_layers": 2, "batch": 16, "length": 8, "width": 16, "vocabulary": 32}
SIZES: dict[str, dict[str, Any]] = {
    "mlp": {"num_layers": 2, "batch": 64, "optimizer": "adam"},
    "transformer": {**SMALL, "optimizer": "adam", "scan": True},
    "experts": {},
}
SLOW = pt.Topology(
    (
        pt.Level("chip", 4, 100e9, 1e-6, measured=(Measured("all_reduce", 4, 1e3, 1e-5),)),
        pt.Level("host", 2, 1e8, 1e-6, sharing=4),
    )
)
LAID = {"placement": "auto", "reductions": "synthesised"}
#: (model, schedule, options, the share of the memory it needs that there is)
CASES = [
    # The models have no hints in their code.
    *(("mlp", f"{name}:data", {}, None) for name in NAMED if name != "hints"),
    *(("transformer", f"{name}:data", {}, None) for name in ("embedding", "sequence", "zero3")),
    ("experts", "expert:data", {}, None),
    ("mlp", "batch:data,megatron:model,zero3:data", {"donate": "state", **LAID}, None),
    ("mlp", "batch:data,auto:model+data", {"donate": "state", **LAID}, None),
    ("mlp", "batch:data,megatron:model", {"reductions": "synthesised"}, None),
    ("mlp", "batch:data", {"donate": "state"}, 0.9),
    ("transformer", "batch:data,auto:model", {"donate": "state"}, 0.9),
    ("transformer", "batch:data,zero2:data", {**LAID}, 0.9),
]


def names() -> list[str]:
    return [f"{i} {model} {schedule}" for i, (model, schedule, _, _) in enumerate(CASES)]


def tactics(schedule: str) -> list[pt.Tactic]:
    """The schedule with searches that are short."""
    budget = pt.Budget(estimates=20, judged=2)
    return [
        dataclasses.replace(tactic, budget=budget) if isinstance(tactic, pt.Automatic) else tactic
        for tactic in pt.parse_schedule(schedule)
    ]


def planned(model: str, schedule: str, options: Any, **more: Any) -> pt.Plan:
    example = models.make(model, **SIZES[model])
    mesh = pt.parse_mesh("data=4,model=2")
    step = pt.partition(example.update, mesh, tactics(schedule), **options, **more)
    return step.plan(example.state_shapes, example.batch_shapes)


def original(case: int) -> pt.Plan:
    """The plan of a case, for a device that no preset is."""
    model, schedule, options, share = CASES[case]
    device = dataclasses.replace(pt.Simulator("a100").device, name="mine", kernel_seconds=1.5e-6)
    options = {**options, "simulate": pt.Simulator(device, SLOW)}
    plan = planned(model, schedule, options)
    if share is None:
        return plan
    peak = plan.steps[-1].simulation.peak_memory_bytes
    small = dataclasses.replace(device, memory_bytes=int(share * peak))
    options["simulate"] = pt.Simulator(small, SLOW)
    return planned(model, schedule, options, recompute=pt.Recompute(1.0))


def told(plan: pt.Plan) -> dict[str, Any]:
    """All that is to be the same."""
    found = {
        "text": plan.text(plan.rows()),
        "json": plan.to_json(),
        "summary": plan.summary(),
        "program": str(plan.program),
        "inputs": str(plan.input_shardings),
        "outputs": str(plan.output_shardings),
        "order": plan.order and list(plan.order),
        "parts": {axis: dict(parts) for axis, parts in plan.parts.items()},
        "explained": plan.explain(plan.graph.program.inputs[0].path),
        "decisions": plan.decisions.to_json(),
    }
    return json.loads(json.dumps(found))


def rebuild(folder: pathlib.Path) -> None:
    """Makes every plan of a folder again; no search and no prediction may run."""
    predict, predictions = pt.Simulator.predict, []

    def search(*_: Any, **__: Any) -> Any:
        raise AssertionError("a search ran")

    def counted(*args: Any) -> Any:
        predictions.append(args)
        return predict(*args)

    Search.__init__ = Frontier.__init__ = Hierarchy.best = search  # type: ignore[method-assign]
    pt.Simulator.predict = counted  # type: ignore[method-assign]
    for case, (model, schedule, _, _) in enumerate(CASES):
        decisions = pt.PlanDecisions.load(folder / f"{case}.json")
        predictions.clear()
        plan = planned(model, schedule, {}, decisions=decisions)
        plan.program  # noqa: B018  (lowered here)
        assert not predictions
        (folder / f"{case}.told").write_text(json.dumps(told(plan)))


@pytest.fixture(scope="module")
def elsewhere(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[Any, Any]]:
    """What is told of every plan here, and in another process."""
    folder = tmp_path_factory.mktemp("decisions")
    here = []
    for case in range(len(CASES)):
        plan = original(case)
        plan.decisions.save(folder / f"{case}.json")
        here.append(told(plan))
    subprocess.run([sys.executable, __file__, str(folder)], check=True, timeout=600)
    there = [json.loads((folder / f"{case}.told").read_text()) for case in range(len(CASES))]
    return list(zip(here, there, strict=True))


@pytest.mark.parametrize("case", range(len(CASES)), ids=names())
def test_another_process_makes_the_same_plan_without_a_search(case: int, elsewhere: Any) -> None:
    here, there = elsewhere[case]
    assert there == here


def test_the_cases_decide_what_travels(elsewhere: Any) -> None:
    texts = [here["text"] for here, _ in elsewhere]
    assert any("move 1 of" in text for text in texts)
    assert sum("regions are computed again" in text for text in texts) == 3
    assert any("carried out level by level" in text for text in texts)
    assert any(here["order"] not in (None, list(range(8))) for here, _ in elsewhere)


# -- one plan and its decisions -------------------------------------------------------------------


def update(state: Any, batch: jax.Array) -> Any:
    loss, gradient = jax.value_and_grad(lambda w: jnp.mean((batch @ w) ** 2))(state)
    return state - 0.1 * gradient, loss


SHAPES = jax.ShapeDtypeStruct((8, 4), jnp.float32), jax.ShapeDtypeStruct((16, 8), jnp.float32)
MESH = pt.Mesh({"data": 4})


def partitioned(schedule: str = "batch:data", mesh: pt.Mesh = MESH, **options: Any) -> Any:
    return pt.partition(update, mesh, pt.parse_schedule(schedule), **options)


def test_decisions_are_a_value() -> None:
    made = partitioned(donate=("state",)).plan(*SHAPES).decisions
    assert pickle.loads(pickle.dumps(made)) == made
    assert pt.PlanDecisions.from_json(json.loads(json.dumps(made.to_json()))) == made
    assert partitioned(decisions=made).plan(*SHAPES).decisions == made
    assert partitioned("").plan(*SHAPES).decisions != made


def test_a_step_runs_as_decided() -> None:
    made = partitioned("batch:data,zero3:data", donate=("state",)).plan(*SHAPES).decisions
    step = partitioned("batch:data,zero3:data", decisions=made)
    state, batch = jnp.ones((8, 4)), jnp.ones((16, 8))
    wanted, _ = jax.jit(update)(state, batch)
    found, _ = step(state, batch)
    again, _ = step(found, batch)
    assert found.is_deleted()
    assert again.sharding.spec == jax.sharding.PartitionSpec("data")
    assert jnp.allclose(again, update(wanted, batch)[0], rtol=1e-5)


@pytest.mark.parametrize(
    ("asked", "shapes", "match"),
    [
        ({"mesh": pt.Mesh({"data": 2})}, SHAPES, "for the mesh data=4, not for data=2"),
        ({"schedule": "zero3:data"}, SHAPES, "schedule batch parallel:data, not for zero3:data"),
        ({"donate": ("batch",)}, SHAPES, r"with donate=\('state',\), not \('batch',\); leave"),
        ({"simulate": pt.Simulator("a100")}, SHAPES, "with simulate='h200', not 'a100-80gb'"),
        (
            {}, (SHAPES[0], jax.ShapeDtypeStruct((32, 8), jnp.float32)),
            r"another step: its input batch f32\[16,8\] is batch f32\[32,8\] here",
        ),
    ],
)  # fmt: skip
def test_decisions_on_something_else_are_refused(asked: Any, shapes: Any, match: str) -> None:
    made = partitioned(donate=("state",)).plan(*SHAPES).decisions
    with pytest.raises(ValueError, match=match):
        partitioned(**asked, decisions=made).plan(*shapes)


def test_another_step_of_the_same_shapes_is_refused() -> None:
    made = partitioned().plan(*SHAPES).decisions

    def other(state: Any, batch: jax.Array) -> Any:
        state, loss = update(state, batch)
        return state, loss * 2

    step = pt.partition(other, MESH, pt.parse_schedule("batch:data"), decisions=made)
    with pytest.raises(ValueError, match=r"another step \(fingerprint [0-9a-f]{8}, not"):
        step.plan(*SHAPES)


def test_files_that_hold_no_decisions(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "plan.json"
    with pytest.raises(ValueError, match=r"plan.json is no plan that can be read: .*No such file"):
        pt.PlanDecisions.load(path)
    path.write_text("{}")
    with pytest.raises(ValueError, match="decisions of version None are not of version 1"):
        pt.PlanDecisions.load(path)
    path.write_text('{"version": 1}')
    with pytest.raises(ValueError, match=r"fields \['donate', .*\] are missing or unknown"):
        pt.PlanDecisions.load(path)


if __name__ == "__main__":
    rebuild(pathlib.Path(sys.argv[1]))
