"""The scripts that hold predictions against a machine: what they measure, and what they write."""

import json

import jax
import pytest

from troupe.agents import examples
from troupe.baselines.speed import simulator
from troupe.partitioning.simulator.presets import DEVICES


@pytest.fixture(scope="module")
def result(tmp_path_factory):
    folder = tmp_path_factory.mktemp("validation")
    model, sizes = simulator.SMALL["dqn"]
    found = simulator.measure(model, sizes, folder, "dqn", seconds=0.05)
    assert (folder / "dqn.hlo.txt.gz").stat().st_size > 1000
    found["predicted"] = simulator.predict(found, DEVICES["h200"])
    return found


def test_a_measurement_holds_time_memory_and_flops(result):
    assert result["step_seconds"] >= result["best_seconds"] > 0
    assert result["memory_analysis"]["argument"] > 0
    assert result["cost_analysis"]["flops"] > 0
    json.dumps(result)


def test_a_compiler_that_tells_no_cost_is_no_failure(tmp_path, monkeypatch, result):
    monkeypatch.setattr(jax.stages.Compiled, "cost_analysis", lambda self: None)
    model, sizes = simulator.SMALL["dqn"]
    found = simulator.measure(model, sizes, tmp_path, "dqn", seconds=0.01)
    assert found["cost_analysis"] == {}
    assert simulator.compare({**found, "predicted": result["predicted"]})["flops_error"] is None


def test_the_comparison_puts_both_side_by_side(result):
    found = simulator.compare(result)
    assert abs(found["flops_error"]) < 0.05
    predicted = result["predicted"]["peak_memory_bytes"]
    assert found["memory_error"] == predicted / found["allocator_peak"] - 1


def test_the_page_names_date_device_versions_and_what_was_left_out(result):
    page = simulator.markdown(
        {
            "date": "2026-01-02",
            "device": "A device",
            "versions": {"jax": "1.2.3"},
            "models": [result],
            "left_out": {"sac": "no time left"},
        }
    )
    for text in ("2026-01-02", "A device", "jax 1.2.3", "| dqn |", "Not measured: sac"):
        assert text in page
    assert "Median absolute error" in page


def test_every_model_of_the_scripts_exists():
    for model, sizes in (*simulator.LARGE.values(), *simulator.SMALL.values()):
        assert examples.make(model, **sizes).batch_shapes
