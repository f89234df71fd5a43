"""docs/environments.md: its code runs, and its options are those that there are."""

import re

import pytest

from troupe import environments
from troupe.baselines.command.line import main


def test_its_code_runs(documented, pages):
    _, scripts = pages("environments.md")
    for script in scripts:
        scope = {}
        exec(compile(script, "environments.md", "exec"), scope)
        if "make_environment" in scope:
            with scope["make_environment"](seed=0, num_envs=2, evaluation=False) as vector:
                assert vector.reset().observation.shape == (2, 1)


def test_its_ids_and_options_are_there(documented, pages):
    """What a command of the page names can be made as it says."""
    text = (pages.__globals__["DOCS"] / "environments.md").read_text()
    commands = re.findall(r"^troupe (?:train|check) \w+ (--env .*)$", text, re.MULTILINE)
    assert len(commands) == 8
    for command in commands:
        words = command.split()
        id, options = words[1], dict(zip(words[2::2], words[3::2], strict=True))
        names = {name.removeprefix("--env."): value for name, value in options.items()}
        pytest.importorskip("Box2D") if id.startswith("Lunar") else None
        pytest.importorskip("mpe2") if id.startswith("pettingzoo:mpe") else None
        from troupe.launch.specification import arguments

        environments.make(id, seed=0, num_envs=1, **arguments.parse(names)).close()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("CartPole-v1 --env.max_episode_steps many", ["--env.max_episode_steps is 'many'"]),
        ("CartPole-v1 --env.max_episode_steps 0", ["max_episode_steps", "at least 1", "got 0"]),
        ("CartPole-v1 --env.gravity 3", ["no argument 'gravity'", "sutton_barto_reward"]),
        ("CartPole-v1 --env.sutton_barto_reward 3", ["must be true or false, got 3"]),
        ("CartPole-v1 --env.seed 3", ["--env.seed cannot be given; say it with --seed"]),
        ("CartPole-v1 --env.actions both", ["--env.actions", "one of strict, clip, rescale"]),
        ("CartPole-v1 --env.max_episode_steps", ["--env.max_episode_steps needs a value"]),
        ("fake/match --env.num_value 3", ["no argument 'num_value'", "num_values"]),
        ("fake/ragged --env.longst 3", ["no argument 'longst'", "longest"]),
        ("fake/match --env.length x", ["length must be a number, got 'x'"]),
        ("no_such_module:Maze-v0", ["no_such_module"]),
    ],
)
def test_options_that_cannot_be(capsys, tmp_path, monkeypatch, arguments, words):
    monkeypatch.chdir(tmp_path)
    assert main(["train", "dqn", "--env", *arguments.split()]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    for word in words:
        assert word in error, error
    assert not [*tmp_path.iterdir()]


def test_options_that_are_given_hold_in_training_too(monkeypatch):
    from troupe.baselines.command import asking
    from troupe.baselines.tuned import Tuned

    options = type("Options", (), {})()
    options.agent, options.env, options.overrides = "dqn", "ALE/Pong-v5", {}
    options.environment = {"episodic_life": "false", "repeat_action_probability": "0.5"}
    clipped = {"reward_clip": 1.0, "episodic_life": True}
    made = asking.recipe(options, Tuned("dqn", "ALE/Pong-v5", training_environment=clipped))
    assert made.environment == {"episodic_life": False, "repeat_action_probability": 0.5}
    assert made.training_environment == {"reward_clip": 1.0}
