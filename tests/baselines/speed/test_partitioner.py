"""The benchmark measures what it says; how fast things are is for a quiet machine to tell."""

import json
import subprocess
import sys

import pytest

from troupe.baselines.speed import partitioner

SIZES = {"batch": 16, "width": 8, "hidden": 16, "num_layers": 2, "optimizer": "adam"}


@pytest.mark.parametrize(
    ("schedule", "mesh"), [("batch:data", "data=8"), (partitioner._SCHEDULES[-1], "data=4,model=2")]
)
def test_steps_are_compared_in_turns(schedule, mesh):
    row = partitioner.stepping("mlp", schedule, mesh, rounds=1, **SIZES)
    assert set(row["seconds"]) == {"partitioned", "compiler", "handwritten"}
    assert row["over_compiler"] > 0
    assert row["over_handwritten"] > 0
    assert row["collectives"]["all_reduce"] >= 1


def test_planning_is_compared_with_compiling():
    """In a process of its own: it empties jax's caches, which other tests fill."""
    command = [sys.executable, "-m", partitioner.__name__, "--only", "planning", "--layers", "1"]
    made = subprocess.run(
        [*command, "--compiles", "1", "--json"], capture_output=True, text=True, check=True
    )
    (row,) = json.loads(made.stdout)["planning"]
    assert row["plan_over_compile"] == pytest.approx(
        row["plan_seconds"] / row["compile_seconds"], rel=0.05
    )
    assert row["ops"] > 100


@pytest.mark.parametrize(("name", "sizes", "most"), partitioner.CALLS[:1])
def test_calls_are_compared_with_jits(name, sizes, most):
    row = partitioner.calling(name, 1, most, **sizes)
    for kind in ("numpy", "jax"):
        seconds = row[f"{kind}_seconds"]
        assert row[f"{kind}_over_jit"] == pytest.approx(
            seconds["partitioned"] / seconds["jit"], rel=0.01
        )
