"""Sweeps: what is proposed and remembered, and the command, killed and gone on with."""

import json
import math
import subprocess
import sys

import numpy as np
import pytest
from matplotlib.figure import Figure

from troupe.baselines.command.line import main
from troupe.baselines.sweep import chart, outcome
from troupe.baselines.sweep.request import SweepRequest
from troupe.baselines.sweep.space import Choices, Range
from troupe.launch.specification.recipe import Recipe

pytest.importorskip("optuna")
from troupe.baselines.sweep.study import Study, Tried

SPACE = {"learning_rate": Range(1e-5, 1e-1, log=True), "batch_size": Choices(("32", "64"))}
EVALUATIONS = 6


def request(trials=12, **more):
    return SweepRequest(Recipe("dqn", "CartPole-v1", seed=3), SPACE, trials=trials, **more)


def value_at(step, settings):
    """A return that rises, to the more the nearer the step size is to 1e-3."""
    distance = abs(math.log10(settings["learning_rate"]) + 3)
    return step / EVALUATIONS * (100 - 30 * distance + int(settings["batch_size"]) / 64)


def conduct(study, trials, limit=None):
    """Runs trials one after another until there are as many, or until the limit-th is killed."""
    killed = None
    while killed is None and (proposal := study.propose(trials)) is not None:
        for step in range(1, EVALUATIONS + 1):
            if step == 3 and proposal.number == limit:
                killed = proposal
                break
            if study.report(proposal, step, value_at(step, proposal.settings)):
                study.prune(proposal)
                break
        else:
            study.complete(proposal, value_at(EVALUATIONS, proposal.settings))
    return killed


@pytest.mark.parametrize("limit", [0, 5])
def test_a_study_that_was_killed_goes_on_as_it_would_have(tmp_path, limit):
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    whole.mkdir()
    broken.mkdir()
    study = Study(whole, request(9), EVALUATIONS)
    conduct(study, 9)
    expected = study.tried()
    killed = conduct(Study(broken, request(9), EVALUATIONS), 9, limit)
    assert killed.number == limit
    again = Study(broken, request(9), EVALUATIONS)
    assert again.recover() == [limit]
    assert again.tried()[limit].state == "running"
    third = Study(broken, request(9), EVALUATIONS)  # Killed before it began: nothing is lost.
    assert third.recover() == []
    conduct(third, 9)
    assert third.tried() == expected
    assert {one.state for one in expected} == {"complete", "pruned"}


def test_good_settings_are_found_and_bad_ones_end_early(tmp_path):
    asked = request(trials=20)
    study = Study(tmp_path, asked, EVALUATIONS)
    study.begin({"learning_rate": 1e-4, "batch_size": "32"})
    conduct(study, 20)
    tried = study.tried()
    assert tried[0].settings == {"learning_rate": 1e-4, "batch_size": "32"}
    best = outcome.best(tried)
    returns = sorted(one.value for one in tried if one.state == "complete")
    assert best.value == returns[-1] > 95
    pruned = [one for one in tried if one.state == "pruned"]
    assert pruned
    assert max(len(one.evaluations) for one in pruned) < EVALUATIONS
    assert min(len(one.evaluations) for one in pruned) >= EVALUATIONS // 3
    importances = study.importances()
    assert importances["learning_rate"] > importances["batch_size"]
    outcome.write(tmp_path, asked, tried)
    written = json.loads((tmp_path / "sweep.json").read_text())
    assert SweepRequest.from_json(written["request"]).space == SPACE
    assert written["best"]["trial"] == best.number
    config = json.loads((tmp_path / "best.json").read_text())
    assert config["learning_rate"] == best.settings["learning_rate"]
    assert config["n_step"] == 1  # Also what is as by default: it may be tuned otherwise.
    lines = outcome.table(asked, tried).splitlines()
    assert lines[0].split() == ["trial", "return", "evaluations", *SPACE]
    assert lines[1].split()[0] == str(best.number)
    chart.draw(asked, tried, importances, tmp_path / "sweep.svg")
    content = (tmp_path / "sweep.svg").read_text()
    assert f"trial {best.number} of 20 is the best" in content
    assert "of the importance" in content


def test_trials_of_one_choice_stand_at_its_tick():
    """Spread beside it, those of one choice would come to stand at another's."""
    figure = Figure()
    axes = figure.subplots()
    trials = [
        Tried(number, "complete", {"core": core}, float(number), {}, None)
        for number, core in enumerate(["lstm"] * 20 + ["gru"])
    ]
    choices = Choices(("lstm", "gru"))
    chart._draw_field(axes, "core", choices, trials, lambda one: "C0", None)
    places = np.concatenate([one.get_offsets() for one in axes.collections])
    assert places[:, 0].tolist() == [0.0] * 20 + [1.0]


def test_without_pruning_all_trials_are_complete(tmp_path):
    study = Study(tmp_path, request(trials=6, prune=False), EVALUATIONS)
    conduct(study, 6)
    assert {one.state for one in study.tried()} == {"complete"}


def test_the_settings_of_before_are_tried_first_where_the_space_has_them():
    recipe = Recipe("dqn", "CartPole-v1", {"batch_size": 64, "learning_rate": 1e-3})
    assert SweepRequest(recipe, SPACE).usual() == {"learning_rate": 1e-3, "batch_size": "64"}
    elsewhere = Recipe("dqn", "CartPole-v1", {"batch_size": 48, "learning_rate": 1e-3})
    assert SweepRequest(elsewhere, SPACE).usual() is None


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("sweep", ["needs an AGENT", "--resume"]),
        ("sweep dqn --config.n_step 1:3", ["needs an --env"]),
        ("sweep dqn --env CartPole-v1", ["nothing is swept", "1e-4:1e-2:log"]),
        ("sweep dqn --env CartPole-v1 --config.n_step 3:1", ["n_step", "the smaller one"]),
        ("sweep dqn --env CartPole-v1 --config.n_stp 1:3", ["did you mean n_step"]),
        ("sweep dqn --env CartPol-v1 --config.n_step 1:3", ["'CartPol-v1'", "CartPole-v1"]),
        ("sweep dqn --env Pendulum-v1 --config.n_step 1:3", ["dqn", "discrete"]),
        ("sweep dqn --env CartPole-v1 --config.n_step 1:3 --trials 0", ["--trials", "at least 1"]),
        ("sweep dqn --env CartPole-v1 --config.n_step 1:3 --actors 2", ["--actors needs --launch"]),
        ("sweep --resume DIR", ["not a sweep's directory"]),
        ("sweep --resume DIR/none", ["not a sweep's directory"]),
    ],
)
def test_what_cannot_be_asked_for(capsys, tmp_path, monkeypatch, arguments, words):
    monkeypatch.chdir(tmp_path)
    assert main(arguments.replace("DIR", str(tmp_path)).split()) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    for word in words:
        assert word in error
    assert not [*tmp_path.iterdir()]


@pytest.mark.parametrize(
    ("name", "content", "code", "word"),
    [
        ("sweep.json", "[]", 2, "cannot read"),
        ("sweep.json", '{"request": {"space": 1}}', 2, "cannot read"),
        ("sweep.json", "{", 2, "cannot read"),
        ("optuna.db", None, 2, "has lost its study, optuna.db"),
        ("optuna.db", "no database, but words" * 99, 1, "cannot open the study"),
    ],
)
def test_what_is_damaged_is_named(capsys, tmp_path, name, content, code, word):
    asked = request()
    outcome.write(tmp_path, asked, [])
    (tmp_path / "optuna.db").touch()
    if content is None:
        (tmp_path / name).unlink()
    else:
        (tmp_path / name).write_text(content)
    assert main(["sweep", "--resume", str(tmp_path)]) == code
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert word in error


def test_a_sweep_without_optuna_says_what_is_missing(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "optuna", None)
    assert main(["sweep", "dqn", "--env", "CartPole-v1", "--config.n_step", "1:3"]) == 2
    assert "pip install 'troupe[optuna]'" in capsys.readouterr().err
    assert not [*tmp_path.iterdir()]


COMMAND = [
    *("sweep", "dqn", "--env", "fake/match", "--steps", "60", "--trials", "3"),
    *("--config.learning_rate", "1e-4:1e-2:log", "--config.n_step", "1,2"),
    *("--config.hidden_sizes", "4", "--config.min_replay_size", "16", "--config.batch_size", "4"),
    *("--config.samples_per_insert", "1", "--config.steps_per_dispatch", "1"),
]


@pytest.mark.long
def test_a_sweep_that_was_killed_goes_on(capsys, tmp_path):
    out = tmp_path / "sweep"
    command = [sys.executable, "-m", "troupe", *COMMAND, "--out", str(out)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        for line in process.stdout:
            if line.startswith("trial 1 of 3"):
                process.kill()
    first = (out / "runs" / "000-0" / "result.json").stat().st_mtime_ns
    for extra, word in (
        (["--seed", "1"], "--seed 1 belongs to a new sweep"),
        (["--config.n_step", "1"], "--config.n_step belongs to a new sweep"),
    ):
        assert main(["sweep", "--resume", str(out), *extra]) == 2
        assert word in capsys.readouterr().err
    assert main([*COMMAND, "--out", str(out)]) == 2
    assert f"go on with `troupe sweep --resume {out}`" in capsys.readouterr().err
    assert main(["sweep", "--resume", str(out), "--workers", "2", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [one["state"] for one in found["trials"]] == ["complete"] * 3
    for one in found["trials"]:
        (run,) = one["runs"]
        result = json.loads((out / run / "result.json").read_text())
        assert result["evaluation"][-1]["mean"] == one["return"]
        config = json.loads((out / run / "config.json").read_text())["config"]
        assert config["learning_rate"] == one["settings"]["learning_rate"]
        assert str(config["n_step"]) == one["settings"]["n_step"]
    assert (out / "runs" / "000-0" / "result.json").stat().st_mtime_ns == first
    assert (out / "sweep.png").read_bytes().startswith(b"\x89PNG")
    best = json.loads((out / "best.json").read_text())
    assert best == found["best"]["config"]


def test_modules_that_a_sweep_tries_are_found_again(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "tried.py").write_text("")
    space = {"torso": Choices(("auto", "tried:make"))}
    request = SweepRequest(Recipe("dqn", "CartPole-v1"), space)
    assert request.to_json()["recipe"]["folders"] == {"tried": str(tmp_path)}
