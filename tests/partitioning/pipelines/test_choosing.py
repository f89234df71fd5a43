"""`Pipeline(schedule="search")` takes the table of least predicted time that fits."""

from __future__ import annotations

import dataclasses
import json
import sys
from typing import Any

import pytest

from troupe import partitioning as pt
from troupe.agents import examples
from troupe.partitioning import pipelines as pp
from troupe.partitioning.pipelines import choosing
from troupe.partitioning.simulator.presets import get_device

from ...results import follow
from .steps import doubles, example, wide

H100 = pt.Simulator("h100")
FOUR, TWO = pt.Mesh({"stage": 4}), pt.Mesh({"stage": 2})


@pytest.fixture
def ortools():
    pytest.importorskip("ortools", exc_type=ImportError)


def planned(
    made: Any, schedule: str, mesh: pt.Mesh = FOUR, simulator: pt.Simulator = H100, **options: Any
) -> pt.Plan:
    step = pt.partition(
        made.update, mesh, pt.parse_schedule(schedule),
        donate=("state",), simulate=simulator, **options,
    )  # fmt: skip
    return step.plan(made.state_shapes, made.batch_shapes)


def figures(plan: pt.Plan) -> Any:
    return json.loads(plan.to_json())["steps"][-1]["pipeline"]


def seconds(plan: pt.Plan) -> float:
    return plan.steps[-1].simulation.predicted_seconds.total


def mlp(**sizes: Any) -> Any:
    return examples.make("mlp", batch=64, num_layers=8, width=16, hidden=32, **sizes)


def test_no_named_schedule_is_predicted_to_be_quicker(ortools):
    made = mlp()
    found = planned(made, "pipeline:stage+search")
    tried = figures(found)["tried"]
    assert {one["microbatches"] for one in tried} == {4, 8, 16, 32}
    assert {*pp.SCHEDULES} - {"3f1b"} <= {one["schedule"] for one in tried}
    assert any("a search over 4 segments" in one["schedule"] for one in tried)
    for name in ("gpipe", "1f1b", "zero-bubble", "interleaved"):
        for count in (4, 8, 16, 32):
            known = seconds(planned(made, f"pipeline:stage+{name}+{count}"))
            assert seconds(found) <= known * (1 + 1e-3)
            # Judged in the search as it is alone.
            (same,) = (
                one for one in tried if (one["schedule"], one["microbatches"]) == (name, count)
            )
            assert same["seconds"] == known
    words = found.steps[-1].notes[0]
    assert f"is the best of {len(tried)} tables" in words


def test_a_number_of_microbatches_that_is_given_is_kept(ortools):
    tried = figures(planned(mlp(), "pipeline:stage+search+2", TWO))["tried"]
    assert {one["microbatches"] for one in tried} == {2}


@pytest.mark.long
def test_less_is_under_way_where_memory_is_short(ortools):
    """No named table fits, and one that is searched for does."""
    made = examples.make("mlp", batch=512, num_layers=8, width=128, hidden=256)
    tried = figures(planned(made, "pipeline:stage+search+4", TWO))["tried"]
    least = min(one["peak_memory_bytes"] for one in tried)
    device = dataclasses.replace(get_device("h100"), memory_bytes=least - 1)
    found = planned(made, "pipeline:stage+search+4", TWO, pt.Simulator(device))
    assert found.steps[-1].simulation.fits
    chosen = figures(found)["tried"][0]
    assert "under way" in chosen["schedule"]
    assert chosen["peak_memory_bytes"] < least


def test_decisions_are_carried_out_without_a_search(ortools, monkeypatch):
    made = mlp()
    found = planned(made, "pipeline:stage+search")

    def search(*args: Any, **keywords: Any) -> Any:
        raise AssertionError("searched again")

    monkeypatch.setattr(choosing, "search_schedule", search)
    saved = pt.PlanDecisions.from_json(json.loads(json.dumps(found.decisions.to_json())))
    again = planned(made, "pipeline:stage+search", decisions=saved)
    assert again.pipeline is not None
    assert found.pipeline is not None
    assert again.pipeline.table == found.pipeline.table
    assert again.to_json() == found.to_json()


@pytest.mark.parametrize(
    ("name", "sizes", "mesh", "schedule"),
    [
        ("mlp", {"num_layers": 4}, {"stage": 2}, "pipeline:stage+search"),
        ("mlp", {"num_layers": 4}, {"data": 2, "stage": 2}, "batch:data,pipeline:stage+search+2"),
        (
            "transformer",
            {"num_layers": 2, "vocabulary": 16, "bias": False, "dtype": "float64"},
            {"stage": 2},
            "embedding:stage,pipeline:stage+search",
        ),
    ],
)
def test_the_step_is_that_of_the_whole(ortools, name, sizes, mesh, schedule):
    with doubles(True):
        update, arguments = example(name, optimizer="adam", **sizes)
        state, batch = wide(arguments)
        tactics = pt.parse_schedule(schedule)
        step = pt.partition(update, pt.Mesh(mesh), tactics, simulate=H100)
        follow(step, update, state, batch, 1e-9)


def test_every_searched_table_runs(ortools):
    """Not the chosen one alone: those with gradients of weights apart, and in a V."""
    made = mlp()
    tried = _tried(made, 2, 4)
    searched = [one for one in tried if one.schedule.startswith("a search")]
    names = {one.schedule for one in searched}
    assert any("in a V" in name for name in names)
    assert any("gradients of weights apart" in name for name in names)
    with doubles(True):
        update, arguments = example("mlp", num_layers=4, optimizer="adam")
        state, batch = wide(arguments)
        for one in searched:
            pipeline = pt.Pipeline("stage", schedule=one.table)
            step = pt.partition(update, pt.Mesh({"stage": 2}), [pipeline], simulate=H100)
            follow(step, update, state, batch, 1e-9)


def _tried(made: Any, stages: int, microbatches: int) -> list[choosing.TriedTable]:
    step = pt.partition(
        made.update, pt.Mesh({"stage": stages}), [pt.Pipeline("stage", microbatches)],
        donate=("state",), simulate=H100,
    )  # fmt: skip
    base = step.plan(made.state_shapes, made.batch_shapes)

    def cut(table: pp.PipelineTable) -> Any:
        schedule = [pt.Pipeline("stage", schedule=table)]
        other = step.with_schedule(pt.Mesh({"stage": stages}), schedule)
        return other.plan(made.state_shapes, made.batch_shapes).pipeline

    assert base.pipeline is not None
    return choosing.choose_table(cut, stages, [microbatches], 1, H100, ("state",))


def test_without_the_solver_one_error_says_so(monkeypatch):
    for module in ("ortools", "ortools.sat.python"):
        monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ImportError, match=r"pip install 'troupe\[pipelines\]'"):
        planned(mlp(), "pipeline:stage+search")


def test_what_cannot_be_cut_is_refused_as_by_a_named_schedule(ortools):
    with pytest.raises(ValueError, match="has 16 segments, but the step can be cut into"):
        planned(
            examples.make("mlp", num_layers=2, width=16, hidden=32),
            "pipeline:stage+search", pt.Mesh({"stage": 16}),
        )  # fmt: skip
    with pytest.raises(ValueError, match="do not divide into 7 micro-batches"):
        planned(mlp(), "pipeline:stage+search+7")
    with pytest.raises(ValueError, match="4 segments and one micro-batch"):
        planned(mlp(), "pipeline:stage+search+1")
