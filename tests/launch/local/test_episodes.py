"""What is known of episodes beside returns: numbers of `info`, and that one does not end."""

import dataclasses
import json
import sys

import gymnasium
import numpy as np
import pytest

from troupe import environments, launch
from troupe.agents import find_builder
from troupe.baselines.command.line import main
from troupe.launch.evaluation import evaluator
from troupe.launch.logging import metrics

from .test_run import Lines

CONFIG = {"hidden_sizes": (4,), "min_replay_size": 8, "max_replay_size": 50, "batch_size": 4}


class Walk(gymnasium.Env):
    """Ends after four steps, or never; every second episode is a success."""

    observation_space = gymnasium.spaces.Box(-1.0, 1.0, (2,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, ends=True, render_mode=None):
        self.ends, self.episode = ends, 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.episode, self.left = self.episode + 1, 4
        return np.zeros(2, np.float32), {}

    def step(self, action):
        self.left -= 1
        over = self.ends and self.left == 0
        # Only the last counts, and only numbers.
        info = {
            "success": over and self.episode % 2 == 1,
            "distance": np.float32(self.left + 3),
            "place": np.zeros(2),
            "nothing": None,
            "unknown": float("nan"),
            "name": "walk",
        }
        return np.zeros(2, np.float32), 1.0, over, False, info


@pytest.fixture(scope="module", autouse=True)
def registered():
    gymnasium.register("Walk-v0", Walk)
    yield
    del gymnasium.registry["Walk-v0"]


def experiment(steps=40, **options):
    def make_environment(*, seed, num_envs, evaluation):
        return environments.make("Walk-v0", seed=seed, num_envs=num_envs, **options)

    builder = find_builder("dqn")
    return launch.Experiment(
        builder=builder(builder.config_class(**CONFIG)),
        environment_factory=make_environment,
        env="Walk-v0",
        num_actor_steps=steps,
        evaluation=launch.Evaluation(every=20, episodes=4, final_episodes=4, num_envs=1),
    )


def test_numbers_of_info_are_those_of_the_episodes_that_ended(tmp_path):
    reporter = Lines()
    result = launch.run(experiment(), tmp_path / "run", reporter=reporter)
    rows = list(metrics.read(tmp_path / "run" / "metrics.jsonl"))
    for kind in ("train", "evaluation"):
        row = [row for row in rows if row["kind"] == kind][-1]
        assert {name for name in row if name.startswith("info/")} == {
            "info/success", "info/distance"
        }  # fmt: skip
        assert row["info/distance"] == 3.0
        assert row["info/success"] == 0.5
    assert result.evaluation[-1]["info/success"] == 0.5
    assert json.loads((tmp_path / "run" / "result.json").read_text()) == result.to_json()
    assert any("4 episodes, success 0.50" in line for line in reporter.lines)
    assert launch.evaluate(tmp_path / "run", experiment=experiment(), episodes=2).summary()[
        "info/success"
    ] == pytest.approx(0.5, abs=0.5)


class Adds(launch.Callback):
    def on_metrics(self, row):
        row["mine"] = 7
        row["learner_steps"] = -1  # What is the run's stays the run's.
        row["shape"] = [1, 2]

    def on_evaluation(self, row):
        row["quality"] = np.float32(0.25)


def test_what_a_callback_adds_to_a_row_is_written(tmp_path):
    made, reporter = dataclasses.replace(experiment(), callbacks=[Adds()]), Lines()
    launch.run(made, tmp_path / "run", reporter=reporter)
    rows = list(metrics.read(tmp_path / "run" / "metrics.jsonl"))
    train = [row for row in rows if row["kind"] == "train"]
    assert all(row["mine"] == 7 and row["learner_steps"] >= 0 for row in train)
    assert all(row["quality"] == 0.25 for row in rows if row["kind"] == "evaluation")
    assert all("shape" not in row for row in rows)
    (line,) = [line for line in reporter.lines if "shape" in line]
    assert "numbers and texts" in line


def test_an_episode_that_does_not_end_is_told_once_with_what_to_do(tmp_path, monkeypatch):
    monkeypatch.setattr(evaluator, "LONG_EPISODE", 50)
    reporter, seen = Lines(), []

    class Impatient(Walk):
        def __init__(self):
            super().__init__(ends=False)
            self.steps = 0

        def step(self, action):
            self.steps += 1
            if self.steps > 130:
                seen.extend(line for line in reporter.lines if "has not ended" in line)
                raise RuntimeError("enough")
            return super().step(action)

    gymnasium.register("Impatient-v0", Impatient)
    endless = dataclasses.replace(
        experiment(),
        environment_factory=lambda *, seed, num_envs, evaluation: environments.make(
            "Impatient-v0" if evaluation else "Walk-v0", seed=seed, num_envs=num_envs
        ),
    )
    with pytest.raises(launch.RunError, match="enough"):
        launch.run(endless, tmp_path / "run", reporter=reporter)
    del gymnasium.registry["Impatient-v0"]
    (line,) = seen
    for words in ("warning", "after 50 steps", "--env.max_episode_steps"):
        assert words in line


def test_episodes_of_a_known_limit_are_waited_for_in_silence(tmp_path, monkeypatch):
    monkeypatch.setattr(evaluator, "LONG_EPISODE", 10)
    reporter = Lines()
    limited = experiment(max_episode_steps=25, ends=False)
    launch.run(limited, tmp_path / "run", reporter=reporter)
    assert not any("has not ended" in line for line in reporter.lines)


def test_the_flag_ends_the_episodes_of_an_id_without_a_limit(tmp_path, monkeypatch, capsys):
    (tmp_path / "endless_walks.py").write_text(
        "import gymnasium\n"
        f"from {__name__} import Walk\n"
        "gymnasium.register('EndlessWalk-v0', lambda **options: Walk(ends=False))\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, __name__, sys.modules[__name__])
    config = [
        f"--config.{name}={value}" for name, value in CONFIG.items() if name != "hidden_sizes"
    ]
    task = ["--env", "endless_walks:EndlessWalk-v0", "--steps", "40", "--out", "run"]
    limit = ["--env.max_episode_steps", "5", "--evaluation-episodes", "2"]
    assert main(["train", "dqn", *task, *limit, "--config.hidden_sizes=4", *config]) == 0
    assert json.loads((tmp_path / "run" / "result.json").read_text())["evaluation"][0]["max"] == 5.0
    capsys.readouterr()
    assert main(["evaluate", "run", "--episodes", "2"]) == 0
    assert "over 2 episodes, success 0.00, after" in capsys.readouterr().out
