"""Recording a policy, learning from data in every kind of launch, and going on with it."""

import json

import numpy as np
import pytest

from troupe import environments, launch
from troupe.agents.replay import OfflineReplay, ReplaySpec, Transitions
from troupe.baselines.command.line import main
from troupe.launch.data import recording, sources
from troupe.launch.evaluation import record
from troupe.launch.files.checkpoints import Store
from troupe.launch.logging import metrics, plot

from ... import demonstrations

SPEC = environments.make_spec(environments.make("fake/match", seed=0))
BC = [*("train", "bc", "--env", "fake/match", "--config.hidden_sizes", "32"),
      *("--config.learning_rate", "3e-3", "--evaluate-every", "1000")]  # fmt: skip


def run(*arguments):
    assert main(list(map(str, arguments))) == 0


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A DQN that has learned `fake/match` from 3-step transitions, two environments at once."""
    path = tmp_path_factory.mktemp("runs") / "dqn"
    config = {
        "hidden_sizes": "32",
        "n_step": 3,
        "num_envs": 2,
        "discount": 0.5,
        "min_replay_size": 200,
        "epsilon_decay_steps": 500,
        "max_replay_size": 700,
    }
    fields = [word for name, value in config.items() for word in (f"--config.{name}", value)]
    run("train", "dqn", "--env", "fake/match", "--steps", 1_500, "--out", path, *fields)
    return path


@pytest.fixture
def data(tmp_path):
    recording.write(tmp_path / "it.npz", demonstrations.match(20), {})
    return tmp_path / "it.npz"


def learned(path):
    """What the newest checkpoint of a run has learned."""
    checkpoint = Store(path / "checkpoints").newest(lambda damage: None)
    with np.load(checkpoint.path / "learner.npz") as file:
        return {name: file[name] for name in file.files}, checkpoint


def test_what_a_policy_did_is_recorded_and_learned(trained, tmp_path, capsys):
    file = tmp_path / "greedy.npz"
    run("record", trained, "--steps", 333, "--out", file)
    assert capsys.readouterr().out.startswith("333 steps of ")
    found = sources.load(file, SPEC)
    assert found.num_transitions == 333
    acted = found.step_type != 2
    played = np.argmax(found.observation[0], axis=1) == found.action[0]
    assert played[acted].mean() > 0.95
    np.testing.assert_array_equal(found.reward[acted], played[acted])
    run(*BC, "--data", file, "--steps", 300, "--out", tmp_path / "bc", "--target", 14)
    result = json.loads((tmp_path / "bc" / "result.json").read_text())
    assert (result["actor_steps"], result["learner_steps"], result["actors"]) == (0, 300, 0)
    assert result["evaluation"][-1]["learner_steps"] == 300
    assert plot.plot([tmp_path / "bc"], tmp_path / "curve.png").exists()
    # Playing what was learned needs no data.
    file.unlink()
    capsys.readouterr()
    run("evaluate", tmp_path / "bc", "--episodes", 2)
    assert "after 300 gradient steps" in capsys.readouterr().out


def test_recordings_of_other_policies_differ(trained, tmp_path):
    def shares(name, **options):
        path = tmp_path / f"{name}.npz"
        _, found = record.record(trained, steps=400, out=path, **options)
        acted = found.step_type != 2
        return (np.argmax(found.observation[0], axis=1) == found.action[0])[acted].mean()

    explored, mixed = shares("explored", stochastic=True), shares("mixed", epsilon=0.8)
    assert explored > 0.8  # The chance of any action is 0.05 by then.
    assert abs(mixed - 0.4) < 0.1  # One in five by its values, and one of four by chance.


def test_a_recording_is_not_written_over(trained, tmp_path):
    file = tmp_path / "it.npz"
    file.write_bytes(b"something")
    with pytest.raises(launch.RequestError, match="exists; name another"):
        record.record(trained, steps=10, out=file)
    with pytest.raises(launch.RequestError, match="no folder to write in"):
        record.record(trained, steps=10, out=tmp_path / "none" / "it.npz")
    with pytest.raises(launch.RequestError, match="epsilon is 2"):
        record.record(trained, steps=10, epsilon=2)
    with pytest.raises(launch.RequestError, match="not a run's directory"):
        record.record(tmp_path, steps=10)
    assert file.read_bytes() == b"something"


def test_the_replay_of_a_run_is_data(trained):
    found = sources.load(trained, SPEC)
    assert 600 < found.num_transitions <= 700
    acted = found.step_type != 2
    played = np.argmax(found.observation[0], axis=1) == found.action[0]
    # Told from the sums of three, which rounding may move a little.
    np.testing.assert_allclose(found.reward[acted], played[acted], atol=1e-4)
    spec = ReplaySpec(Transitions(1), batch_size=8, max_size=8)
    assert len(OfflineReplay(found, spec, SPEC)) == found.num_transitions


def test_a_run_goes_on_where_it_was(data, tmp_path, capsys):
    run(*BC, "--data", data, "--steps", 40, "--out", tmp_path / "whole")
    run(*BC, "--data", data, "--steps", 20, "--out", tmp_path / "parts")
    run("resume", tmp_path / "parts", "--steps", 40)
    (whole, _), (parts, checkpoint) = learned(tmp_path / "whole"), learned(tmp_path / "parts")
    assert checkpoint.counters["learner_steps"] == 40
    for name, array in whole.items():
        np.testing.assert_array_equal(array, parts[name])
    steps = [row["learner_steps"] for row in _rows(tmp_path / "parts")]
    assert steps == sorted(steps)
    assert steps[-1] == 40
    with pytest.raises(launch.RequestError, match=r"is not kept: .* or record the policy"):
        sources.load(tmp_path / "parts", SPEC)
    capsys.readouterr()
    # Other data in its place is noticed, and so is none.
    data.unlink()
    assert main(["resume", str(tmp_path / "parts"), "--steps", "60"]) == 2
    assert "no data at" in capsys.readouterr().err
    recording.write(data, demonstrations.match(19), {})
    assert main(["resume", str(tmp_path / "parts"), "--steps", "60"]) == 2
    assert "learned from other data" in capsys.readouterr().err


@pytest.mark.long
def test_dqn_learns_from_data_too(data, tmp_path):
    dqn = ["train", "dqn", "--env", "fake/match", "--config.hidden_sizes", 32]
    run(*dqn, "--data", data, "--steps", 80, "--out", tmp_path / "dqn")
    result = json.loads((tmp_path / "dqn" / "result.json").read_text())
    assert (result["actor_steps"], result["learner_steps"]) == (0, 80)


@pytest.mark.long
def test_a_mesh_learns_what_one_device_does(data, tmp_path):
    mesh = ["--mesh", "data=2", "--schedule", "batch:data"]
    run(*BC, "--data", data, "--steps", 20, "--out", tmp_path / "mesh", *mesh)
    run(*BC, "--data", data, "--steps", 20, "--out", tmp_path / "one")
    rows = [_rows(tmp_path / name)[-1] for name in ("mesh", "one")]
    assert rows[0]["learner_steps"] == rows[1]["learner_steps"] == 20
    assert rows[0]["loss"] == pytest.approx(rows[1]["loss"], rel=1e-4)


@pytest.mark.long
@pytest.mark.distributed
def test_a_gang_learns_what_one_process_does_and_goes_on(data, tmp_path, monkeypatch):
    pytest.importorskip("launchpad")
    monkeypatch.setenv("XLA_FLAGS", "")
    gang = ["--launch", "processes", "--learner-hosts", 2]
    run(*BC, "--data", data, "--steps", 20, "--out", tmp_path / "gang", *gang)
    run("resume", tmp_path / "gang", "--steps", 40)
    run(*BC, "--data", data, "--steps", 40, "--out", tmp_path / "one")
    result = json.loads((tmp_path / "gang" / "result.json").read_text())
    counts = [result[name] for name in ("actor_steps", "learner_steps", "actors", "learner_hosts")]
    assert counts == [0, 40, 0, 2]
    assert result["evaluation"][-1]["mean"] > 14
    rows = [_rows(tmp_path / name)[-1] for name in ("gang", "one")]
    assert rows[0]["loss"] == pytest.approx(rows[1]["loss"], rel=1e-4)


def _rows(path):
    return list(metrics.read(path / "metrics.jsonl", "train"))
