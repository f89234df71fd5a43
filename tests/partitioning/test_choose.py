"""A mesh and a schedule that are chosen are at least as good as all that was tried."""

from __future__ import annotations

import dataclasses

import pytest

from troupe import partitioning as pt
from troupe.partitioning import models, record
from troupe.partitioning.choose import meshes
from troupe.partitioning.pipelines import cutting
from troupe.partitioning.simulator.presets import get_device
from troupe.partitioning.simulator.topology import Level, Topology


def planner(example, simulator, recompute=None):
    def planned(mesh, tactics):
        options = {"simulate": simulator, "recompute": recompute, "donate": ("state",)}
        step = pt.partition(example.update, mesh, tactics, **options)
        return step.plan(example.state_shapes, example.batch_shapes)

    return planned


def test_what_is_chosen_is_the_least_of_what_fits():
    example = models.make("mlp", batch=256, width=512, hidden=2048, num_layers=2)
    found = pt.choose(planner(example, pt.Simulator("h200")), 4)
    costs = [t.simulation.predicted_seconds.total for t in found.others]
    assert found.best.simulation.predicted_seconds.total <= 1.01 * min(costs)
    assert {t.mesh for t in (found.best, *found.others)} == {
        "data=4", "data=2,model=2", "data=1,model=4", "stage=2,data=2", "stage=4",
    }  # fmt: skip
    searched = [t for t in (found.best, *found.others) if t.schedule.startswith("auto:")]
    assert len(searched) == 2
    text = str(found)
    assert f"--mesh {found.best.mesh} --schedule {found.best.schedule}" in text
    assert found.to_json()["chosen"]["mesh"] == found.best.mesh


def deep():
    """Large parameters and small activations."""
    sizes = {"batch": 64, "num_layers": 4, "width": 512, "hidden": 2048, "optimizer": "adam"}
    return models.make("mlp", **sizes)


def test_on_one_host_no_pipeline_is_quickest():
    found = pt.choose(planner(deep(), pt.Simulator("h100")), 8, searched=0)
    assert not found.best.is_pipeline
    staged = [t for t in found.others if t.is_pipeline]
    assert {t.mesh for t in staged} == {"stage=2,data=4", "stage=4,data=2", "stage=8"}
    least = min(staged, key=lambda t: t.simulation.predicted_seconds.total)
    ratio = least.simulation.predicted_seconds.total / found.best.simulation.predicted_seconds.total
    assert ratio > 1.05
    words = f"{least.mesh} --schedule {least.schedule}, takes {ratio:.2f} times as long"
    assert found.of_pipelines() == f"no pipeline is quickest: the best one, --mesh {words}"
    assert found.of_pipelines() in str(found)


def test_over_a_slow_link_a_pipeline_is_best():
    levels = Level("host", 4, 3e11, 2e-6), Level("cable", 2, 12e6, 1e-4, sharing=4)
    # No device holds the state of more than two layers.
    device = dataclasses.replace(get_device("h100"), memory_bytes=60 * 2**20)
    found = pt.choose(planner(deep(), pt.Simulator(device, Topology(levels))), 8, searched=1)
    assert found.best.simulation.fits
    assert found.best.is_pipeline
    others = [t for t in found.others if not t.is_pipeline]
    least = min(t.simulation.predicted_seconds.total for t in others if t.simulation.fits)
    ratio = least / found.best.simulation.predicted_seconds.total
    assert ratio > 1.5
    assert found.of_pipelines().startswith("a pipeline is best: without one, --mesh ")
    # What it says can be asked for.
    (pipeline,) = pt.parse_schedule(found.best.schedule)[-1:]
    assert isinstance(pipeline, pt.Pipeline)


def test_stages_are_left_out_where_none_are_wanted_or_can_be():
    example = models.make("mlp", batch=64, width=64, hidden=256, num_layers=1)
    found = pt.choose(planner(example, pt.Simulator("h100")), 4, searched=0, stages=False)
    assert not any(t.is_pipeline for t in (found.best, *found.others, *found.impossible))
    assert found.of_pipelines() == ""
    narrow = models.make("mlp", batch=3, width=64, hidden=256, num_layers=1)
    found = pt.choose(planner(narrow, pt.Simulator("h100")), 4, searched=0)
    assert found.of_pipelines().startswith("no pipeline can be: ")


def test_a_small_device_takes_what_fits():
    example = models.make("mlp", batch=64, width=256, hidden=1024, num_layers=3, optimizer="adam")
    large = pt.choose(planner(example, pt.Simulator("h200")), 4)
    least = min(t.simulation.peak_memory_bytes for t in (large.best, *large.others))
    device = dataclasses.replace(get_device("h200"), memory_bytes=int(1.05 * least))
    found = pt.choose(planner(example, pt.Simulator(device)), 4)
    assert found.best.simulation.fits
    assert not all(t.simulation.fits for t in found.others)


def test_what_cannot_be_is_told():
    with pytest.raises(ValueError, match=r"0 devices are none to choose a mesh for"):
        list(meshes(0))
    assert [str(mesh) for mesh in meshes(6)] == [
        "data=6", "data=3,model=2", "data=2,model=3", "data=1,model=6",
    ]  # fmt: skip
    example = models.make("mlp", batch=3, width=3, hidden=5)
    with pytest.raises(ValueError, match=r"no known schedule splits this step over 7 devices"):
        pt.choose(planner(example, pt.Simulator("h200")), 7)


def test_plans_of_one_step_are_traced_once():
    """And are as good as if each were traced for itself."""
    example = models.make("mlp", batch=64, width=64, hidden=256, num_layers=2)
    traced = []

    def update(state, batch):
        traced.append(None)
        return example.update(state, batch)

    step = pt.partition(update, pt.Mesh({"data": 1}), [], donate=("state",))
    shapes = example.state_shapes, example.batch_shapes
    found = pt.choose(lambda mesh, tactics: step.with_schedule(mesh, tactics).plan(*shapes), 4)
    assert len(traced) == 1
    alone = pt.choose(planner(example, pt.Simulator("auto")), 4)
    assert found.to_json() == alone.to_json()
    assert str(found.plan) == str(alone.plan)


def counted(monkeypatch, module, name):
    """The returned results of a function, one each time that it is called."""
    calls, function = [], getattr(module, name)

    def call(*arguments):
        calls.append(function(*arguments))
        return calls[-1]

    monkeypatch.setattr(module, name, call)
    return calls


def test_each_stage_runs_as_often_as_plans_differ_in_it(monkeypatch):
    """Nothing is lowered that splits nothing, and pipelines that differ in their table alone are
    split and timed once."""
    lowered = counted(monkeypatch, record, "lower")
    split, timed = (counted(monkeypatch, cutting, name) for name in ("split_step", "op_seconds"))
    plan = planner(deep(), pt.Simulator("h100"))
    found = pt.choose(plan, 8, searched=0)
    able = [found.best, *found.others]
    assert len(lowered) == sum(not t.is_pipeline for t in able)
    assert any("finds nothing to split" in t.why for t in found.impossible)
    staged = [t for t in able if t.is_pipeline]
    splits = {
        (t.mesh, t.schedule.partition("pipeline:")[0], t.plan.pipeline.table.microbatches)
        for t in staged
    }
    assert len(staged) > len(splits) == len(split) == len(timed)
    for tried in staged:  # As when each is planned for itself.
        alone = plan(pt.parse_mesh(tried.mesh), pt.parse_schedule(tried.schedule))
        assert alone.to_json() == tried.plan.to_json()


def test_another_pipeline_needs_one_over_the_same_axis():
    plan = planner(deep(), pt.Simulator("h100"))
    without = plan(pt.Mesh({"data": 2}), pt.parse_schedule("batch:data"))
    with pytest.raises(ValueError, match=r"the plan has no pipeline over axis 'stage'"):
        without.with_pipeline(pt.Pipeline("stage"))
