"""Several seeds and settings with one command: as one program, one by one, or in processes."""

import json
import shutil

import numpy as np
import pytest

from troupe.baselines.command.line import main
from troupe.baselines.grid import request as requests
from troupe.baselines.grid.request import GridRequest
from troupe.launch.errors import RequestError
from troupe.launch.specification.recipe import Recipe

COMPILED = (
    *("train", "ppo", "--env", "jax:CartPole-v1", "--launch", "compiled", "--steps", "400"),
    *("--config.hidden_sizes", "8", "--config.num_envs", "4", "--config.rollout_length", "8"),
    *("--config.num_minibatches", "2", "--evaluation-episodes", "2"),
)
DQN = (
    *("train", "dqn", "--env", "jax:Catch-v0", "--config.hidden_sizes", "8", "--steps", "300"),
    *("--config.min_replay_size", "20", "--evaluation-episodes", "2"),
)


def result(path):
    return json.loads((path / "result.json").read_text())


def test_settings_and_seeds_are_one_program(tmp_path, capsys):
    out = tmp_path / "grid"
    several = "--seeds", "2", "--seed", "5", "--config.learning_rate", "1e-4,1e-3"
    assert main([*COMPILED, *several, "--out", str(out)]) == 0
    printed = capsys.readouterr().out
    for rate in ("0.0001", "0.001"):
        for seed in ("5", "6"):
            found = result(out / f"learning_rate={rate}" / seed)
            assert found["seed"] == int(seed)
            assert found["launch"] == "compiled"
        evaluations = [line for line in printed.splitlines() if "evaluation at" in line]
        evaluations = [line for line in evaluations if line.startswith(f"learning_rate={rate}: ")]
        assert evaluations
        assert all(line.endswith("over 2 runs") for line in evaluations)
        assert f"learning_rate {rate}: return " in printed
    assert "over 2 seeds" in printed
    assert (out / "curve.png").stat().st_size > 0
    assert main(["resume", str(out)]) == 0  # Nothing is left to do.
    assert "learning_rate=0.0001/5:" not in capsys.readouterr().out
    assert main(["resume", str(out), "--steps", "500"]) == 0
    assert "goes on" in capsys.readouterr().out
    assert result(out / "learning_rate=0.001" / "6")["actor_steps"] >= 497


@pytest.fixture(scope="module")
def in_turn(tmp_path_factory):
    """A grid whose runs came one after the other; its runs miss their target."""
    out = tmp_path_factory.mktemp("in_turn") / "grid"
    assert main([*DQN, "--seeds", "2", "--target", "1000", "--out", str(out)]) == 1
    return out


@pytest.mark.parametrize("parallel", [False, True], ids=["in-turn", "processes"])
def test_other_launches_take_several_seeds(parallel, in_turn, tmp_path, capsys):
    out = tmp_path / "grid"
    if parallel:
        assert main([*DQN, "--seeds", "2", "--parallel", "2", "--out", str(out)]) == 0
    else:
        shutil.copytree(in_turn, out)
        assert main(["resume", str(out)]) == 1
    returns = [result(out / seed)["evaluation"][-1]["mean"] for seed in ("0", "1")]
    assert f"mean {np.mean(returns):.1f} +- {np.std(returns):.1f} over 2 seeds" in (
        capsys.readouterr().out
    )


def test_compiled_runs_are_divided_among_processes(tmp_path):
    out = tmp_path / "grid"
    assert main([*COMPILED, "--seeds", "3", "--parallel", "2", "--out", str(out)]) == 0
    assert [result(out / str(seed))["seed"] for seed in range(3)] == [0, 1, 2]


def test_one_that_fails_leaves_the_others(in_turn, tmp_path, capsys):
    """Its checkpoint is damaged."""
    out = tmp_path / "grid"
    shutil.copytree(in_turn, out)
    (out / "0" / "result.json").unlink()
    for path in (out / "0" / "checkpoints").rglob("learner.npz"):
        path.write_bytes(b"damaged")
    (out / "1" / "result.json").unlink()
    assert main(["resume", str(out), "--steps", "320"]) == 1
    error = capsys.readouterr().err
    assert error.startswith("troupe: 1 of 2 runs failed: 0; 0: ")
    assert result(out / "1")["actor_steps"] >= 320


def test_the_mean_over_seeds_is_held_against_the_target(in_turn, capsys):
    assert main(["resume", str(in_turn)]) == 1  # Nothing is left to do.
    assert "below the target of 1000" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--seeds", "0"), "--seeds"),
        (("--parallel", "many"), "--parallel"),
        (("--config.learning_rate", "1e-3,fast"), "learning_rate"),
        (("--config.learning_rate", "1e-3,-1"), "learning_rate"),
    ],
    ids=str,
)
def test_what_cannot_be_is_said_before_the_first_run(arguments, words, tmp_path, capsys):
    out = tmp_path / "grid"
    assert main([*DQN, "--seeds", "2", *arguments, "--out", str(out)]) == 2
    error = capsys.readouterr().err
    assert words in error
    assert len(error.splitlines()) == 1
    assert not out.exists()


def test_a_directory_that_is_taken_is_left_alone(tmp_path, capsys):
    (tmp_path / "mine").touch()
    assert main([*DQN, "--seeds", "2", "--out", str(tmp_path)]) == 2
    assert "is not empty" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


def test_lists_are_no_choices():
    from troupe.agents import find_builder

    config = find_builder("dqn").config_class
    asked = {"hidden_sizes": "64,64", "discount": "0.9,0.99", "batch_size": 32}
    several, fixed = requests.split(config, asked)
    assert several == {"discount": [0.9, 0.99]}
    assert fixed == {"hidden_sizes": "64,64", "batch_size": 32}


def test_a_request_is_kept_as_it_is(tmp_path):
    recipe = Recipe("dqn", "CartPole-v1", {"discount": 0.9}, seed=3)
    asked = GridRequest(recipe, {"learning_rate": [1e-3, 1e-4]}, 2, 3)
    asked.write(tmp_path / "grid")
    found = requests.read(tmp_path / "grid")
    assert [run.name for run in found.runs()] == [run.name for run in asked.runs()]
    assert [run.recipe.experiment().identity() for run in found.runs()] == [
        run.recipe.experiment().identity() for run in asked.runs()
    ]
    (tmp_path / "grid" / requests.FILE).write_text("{}")
    with pytest.raises(RequestError, match="cannot read"):
        requests.read(tmp_path / "grid")
