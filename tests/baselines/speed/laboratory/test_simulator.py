"""The scripts that hold predictions against a machine: what they measure, and what they write."""

import json
import pathlib

import jax
import pytest

from troupe.baselines.speed.laboratory import simulator, steps
from troupe.partitioning.simulator.presets import DEVICES

TESTS = pathlib.Path(__file__).parents[3]


@pytest.fixture(scope="module")
def result(tmp_path_factory):
    folder = tmp_path_factory.mktemp("validation")
    found = simulator.measure("dqn", {}, folder, "dqn", seconds=0.05)
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
    found = simulator.measure("dqn", {}, tmp_path, "dqn", seconds=0.01)
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
    for model, sizes in (*steps.LARGE.values(), *steps.HELD_OUT.values()):
        assert steps.make(model, sizes).batch_shapes
        assert steps.make(model, steps.shrink(sizes)).batch_shapes


def test_steps_held_out_are_none_that_presets_were_made_from():
    records = json.loads((TESTS / "partitioning" / "simulator" / "h100.json").read_text())["steps"]
    known = [(record["model"], record["sizes"]) for record in records]
    assert not [step for step in steps.HELD_OUT.values() if step in known]


def test_steps_held_out_are_printed_as_measured_beside_the_preset(tmp_path, monkeypatch, capsys):
    """A process each, which knows its own list: what is not there fails, and is named."""
    held_out = {"mixer": ("mixer", {}), "lstm": ("lstm", {})}
    monkeypatch.setattr(simulator, "HELD_OUT", held_out | {"unknown": ("mixer", {})})
    arguments = ["--held-out", "--small", "--device", "h100", "--seconds", "0.01"]
    assert simulator.main([*arguments, "--out", str(tmp_path)]) == 0
    printed = capsys.readouterr().out
    assert printed.index("mixer: ") < printed.index("lstm: ") < printed.index("| model |")
    assert " MiB (" in printed
    assert "Not measured: unknown (failed: KeyError" in printed
    report = json.loads((tmp_path / "validation.json").read_text())
    assert report["calibration"] is None
    assert [found["name"] for found in report["models"]] == list(held_out)
