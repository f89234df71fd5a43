"""A run goes on in another launch than the one that wrote its newest checkpoint, and back."""

import json
import os
import subprocess
import sys

import pytest

from troupe.launch.logging import metrics

KINDS = [
    pytest.param("ray", "ray", id="ray"),
    pytest.param("processes", "launchpad", id="processes", marks=pytest.mark.distributed),
]


def troupe(*arguments):
    """Runs a command; what it said."""
    done = subprocess.run(
        [sys.executable, "-m", "troupe", *map(str, arguments)],
        check=False,
        capture_output=True,
        text=True,
        env={**os.environ, "XLA_FLAGS": ""},
        timeout=600,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout


def counters(out):
    newest = max((out / "checkpoints").glob("checkpoint-*"))
    return json.loads((newest / "manifest.json").read_text())["counters"]


SMALL = (
    "--config.hidden_sizes", "8", "--config.batch_size", "4", "--evaluate-every", "150",
    "--evaluation-episodes", "2",
    "--config.steps_per_dispatch", "2",
)  # fmt: skip


@pytest.mark.long
@pytest.mark.parametrize(("kind", "package"), KINDS)
def test_an_agent_that_acts_goes_on_anywhere(tmp_path, kind, package):
    pytest.importorskip(package)
    out = tmp_path / "run"
    acts = ("--config.min_replay_size", "50", "--config.samples_per_insert", "2")
    troupe("train", "dqn", "--env", "CartPole-v1", "--steps", 300, "--out", out, *SMALL, *acts)
    first = counters(out)
    said = troupe("resume", out, "--launch", kind, "--actors", 1, "--steps", 600)
    second = counters(out)
    # What an embedded replay holds a shared one can take; Reverb's tables cannot.
    assert ("replay begins empty" in said) == (kind == "processes")
    assert first["actor_steps"] == 300
    assert 590 < second["actor_steps"] <= 600
    assert second["learner_steps"] > first["learner_steps"] > 0
    assert second["evaluations"] >= first["evaluations"] == 1  # The last comes after the save.
    assert second["incarnations"] >= 1
    said = troupe("resume", out, "--launch", "one-process", "--steps", 900)
    third = counters(out)
    assert "replay begins empty" in said  # On Ray a second writer has come to it.
    assert third["actor_steps"] == 900
    assert third["learner_steps"] > second["learner_steps"]
    assert third["evaluations"] > second["evaluations"] >= 1
    # Neither its environments nor its actors see episodes again.
    assert third["resumed"] == first["resumed"] + 1
    assert third["incarnations"] == second["incarnations"]
    # An evaluation's row has the steps of its policy, which trained on while it was played.
    for rows in ("train", "evaluation"):
        steps = [row["actor_steps"] for row in metrics.read(out / "metrics.jsonl", rows)]
        assert len(steps) > 1
        assert steps == sorted(steps)
    assert json.loads((out / "config.json").read_text())["launch"] == "one-process"


@pytest.mark.long
@pytest.mark.parametrize(("kind", "package"), KINDS)
def test_an_agent_that_learns_from_data_goes_on_anywhere(tmp_path, kind, package):
    pytest.importorskip(package)
    data, out = tmp_path / "data", tmp_path / "run"
    task = ("--env", "CartPole-v1", *SMALL)
    troupe("train", "dqn", *task, "--steps", 300, "--out", data, "--config.min_replay_size", "50")
    troupe("train", "bc", *task, "--data", data, "--steps", 300, "--out", out)
    assert counters(out)["learner_steps"] == 300
    troupe("resume", out, "--launch", kind, "--steps", 600)
    assert counters(out)["learner_steps"] == 600
    troupe("resume", out, "--launch", "one-process", "--steps", 900)
    third = counters(out)
    assert (third["learner_steps"], third["actor_steps"]) == (900, 0)
    assert third["evaluations"] >= 2
