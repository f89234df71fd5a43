"""Parts of a user's own that are not made are named in one line; no directory is left behind."""

import dataclasses

import gymnasium
import pytest

from troupe import environments, launch
from troupe.agents.dqn import DQNBuilder, DQNConfig
from troupe.baselines.command.line import main

CONFIG = DQNConfig(hidden_sizes=(4,), min_replay_size=8, max_replay_size=50, batch_size=4)


def make_environment(*, seed, num_envs, evaluation):
    return environments.make("CartPole-v1", seed=seed, num_envs=num_envs)


EXPERIMENT = launch.Experiment(DQNBuilder(CONFIG), make_environment, "CartPole-v1", 40)
METHODS = (
    *("make_networks", "make_policy", "make_update", "make_replay_spec", "make_replay_tables"),
    *("make_adder", "make_dataset_iterator", "make_learner", "make_actor"),
)


def fails(experiment, out, *words):
    with pytest.raises(ValueError, match=r"\w") as raised:
        launch.run(experiment, out, progress=False)
    message = str(raised.value)
    assert "\n" not in message
    assert all(word in message for word in words), message
    assert not out.exists()


@pytest.mark.parametrize("method", METHODS)
def test_what_a_builder_does_not_make_is_named(method, tmp_path):
    def nothing(self, *arguments, **options):
        return None

    def failing(self, *arguments, **options):
        raise KeyError("no such thing")

    for function, words in ((nothing, "None"), (failing, "no such thing")):
        own = type("Own", (DQNBuilder,), {method: function})
        made = dataclasses.replace(EXPERIMENT, builder=own(CONFIG))
        fails(made, tmp_path / "run", method, words)


def a_vector(*, seed, num_envs, evaluation):
    return gymnasium.make_vec("CartPole-v1", num_envs=num_envs)


def failing(*, seed, num_envs, evaluation):
    raise KeyError("no such thing")


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"environment_factory": a_vector}, ["CartPoleVectorEnv", "environments.Vector"]),
        ({"environment_factory": failing}, ["environment_factory", "no such thing", "in failing"]),
        ({"environment_factory": lambda seed: 3}, ["environment_factory", "num_envs"]),
        ({"network_factory": lambda spec: {}["x"]}, ["network_factory", "KeyError"]),
    ],
)
def test_factories_that_fail_are_named(fields, words, tmp_path):
    fails(dataclasses.replace(EXPERIMENT, **fields), tmp_path / "run", *words)


@pytest.mark.parametrize("out", [None, 3])
def test_a_directory_is_a_path(out):
    for call in (
        lambda: launch.run(EXPERIMENT, out, progress=False),
        lambda: launch.evaluate(out),
        lambda: launch.load_policy(out),
    ):
        with pytest.raises(launch.RequestError, match=f"a path, not {out}"):
            call()


@pytest.mark.parametrize("text", ["null", "3", "[]", '"text"'])
def test_a_config_that_is_no_object_is_damaged(text, tmp_path, capsys):
    (tmp_path / "config.json").write_text(text)
    for command in ("resume", "evaluate", "export", "plot"):
        assert main([command, str(tmp_path)]) == 2
        error = capsys.readouterr().err
        assert "config.json" in error
        assert "no object" in error
        assert error.count("\n") == 1
