"""The runs of other libraries: what is counted and what is left out, with a library made up here.

The real ones need interpreters of their own; how to get them is in the benchmark's documentation.
"""

import importlib
import json
import subprocess
import sys
import textwrap
import types

import gymnasium
import pytest

from troupe.baselines.speed import peers

# As much of stable-baselines3 as `peers.run` uses, with a clock of its own. A step takes 1 s, the
# first two updates 100 s each, later ones 10 s, an action of an evaluation 1000 s. The policy is
# good from the first update on.
LIBRARY = {
    "stable_baselines3/__init__.py": """
        now = [0.0]

        class DQN:
            n_steps, n_envs, n_epochs, batch_size = 32, 1, 3, 10

            def __init__(self, policy, environment, seed, device, learning_rate, **arguments):
                assert policy == "MlpPolicy" and device == "cpu"
                assert learning_rate(1.0) == 0.5 and learning_rate(0.5) == 0.25
                self.num_timesteps, self.trained, self.arguments = 0, 0, arguments

            def train(self, **named):
                self.trained += 1
                now[0] += 100 if self.trained <= 2 else 10

            def predict(self, observations, deterministic):
                assert deterministic and len(observations) == 3
                now[0] += 1000
                right = self.trained and observations[:, 2] + observations[:, 3] > 0
                return (observations[:, 0] * 0 + right).astype(int), None

            def learn(self, total, callback):
                while self.num_timesteps < total:
                    for _ in range(10):
                        self.num_timesteps += 1
                        now[0] += 1
                        callback.num_timesteps = self.num_timesteps
                        if not callback._on_step():
                            return
                    self.train(**self.arguments)
    """,
    "torch.py": "set_num_threads = [].append",
    "stable_baselines3/common/__init__.py": "",
    "stable_baselines3/common/vec_env.py": """
        class DummyVecEnv:
            def __init__(self, makers):
                self.environments = [make() for make in makers]

            def seed(self, seed):
                assert seed == 7
    """,
    "stable_baselines3/common/callbacks.py": """
        class BaseCallback:
            pass
    """,
    "stable_baselines3/common/monitor.py": """
        def Monitor(environment):
            return environment
    """,
}


@pytest.fixture
def library(tmp_path, monkeypatch):
    for name, text in LIBRARY.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text))
    monkeypatch.syspath_prepend(tmp_path)
    now = importlib.import_module("stable_baselines3").now
    clock = types.SimpleNamespace(perf_counter=lambda: now[0], process_time=lambda: now[0] / 2)
    monkeypatch.setattr(peers, "time", clock)
    monkeypatch.setattr(peers, "_versions", lambda peer: {})
    monkeypatch.setattr(peers, "bare_rate", lambda env: {})


def settings(**changes):
    common = {
        "peer": "sb3",
        "agent": "dqn",
        "env": "CartPole-v1",
        "total_steps": 100,
        "seed": 7,
        "target_return": 100.0,
        "evaluate_every": 25,
        "evaluation_episodes": 3,
        "hyperparameters": {"learning_rate": "linear 0.5", "gradient_steps": 5},
    }
    return peers.PeerRun(**{**common, **changes})


def test_warmup_and_evaluations_are_left_out(library):
    result = peers.run(settings())
    assert (result["env_steps"], result["gradient_steps"]) == (100, 50)
    # Two rounds of 10 steps and an update of 100 s.
    assert result["warmup_env_steps"] == 20
    assert result["warmup_seconds"] == 220
    assert result["warmup_cpu_seconds"] == 110
    # Eight rounds of 10 steps, 5 gradient steps and 20 s.
    assert result["env_steps_per_second"] == 0.5
    assert result["env_steps_per_cpu_second"] == 1.0
    assert result["gradient_steps_per_second"] == 0.25
    assert result["wall_seconds"] == 380
    # The policy is evaluated until it is good enough, and the clock stands still.
    assert [steps for steps, _ in result["evaluations"]] == [25]
    assert result["target"]["env_steps"] == 25
    assert result["target"]["return"] >= 100
    assert result["target"]["wall_seconds"] == 225
    json.dumps(result)


def test_updates_of_a_rollout_are_counted_from_its_size(library):
    arguments = {"learning_rate": "linear 0.5"}
    result = peers.run(settings(hyperparameters=arguments, target_return=None))
    assert result["gradient_steps"] == 10 * 3 * 4
    assert result["evaluations"] == []


def test_a_run_stops_at_the_target_on_request(library):
    result = peers.run(settings(stop_at_target=True))
    assert result["env_steps"] == 25


def test_too_few_steps_to_measure_are_refused(library):
    with pytest.raises(ValueError, match="10 steps are too few"):
        peers.run(settings(total_steps=10))


def test_a_library_that_is_not_there_is_named_on_one_line():
    with pytest.raises(ValueError, match=r"sbx with .* failed: ModuleNotFoundError") as caught:
        peers.measure(sys.executable, settings(peer="sbx"))
    assert "\n" not in str(caught.value)
    with pytest.raises(ValueError, match="no/such/python"):
        peers.measure("no/such/python", settings())


def test_settings_of_the_zoo():
    zoo = peers.zoo("sb3", "ppo", "CartPole-v1", seed=3, total_steps=5)
    assert (zoo.num_envs, zoo.seed, zoo.total_steps) == (8, 3, 5)
    with pytest.raises(ValueError, match="there are dqn CartPole-v1, dqn ALE/Pong-v5, ppo"):
        peers.zoo("sb3", "dqn", "Pong")
    with pytest.raises(ValueError, match="sb3, sbx"):
        settings(peer="rllib")


def test_the_file_runs_where_nothing_is_installed():
    command = [sys.executable, "-I", "-S", peers.__file__, json.dumps({"peer": "rllib"})]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "TypeError" in done.stderr.strip().splitlines()[-1]


def test_the_yardstick_is_the_bare_environment():
    environment = gymnasium.make("CartPole-v1").unwrapped
    rates = peers.bare_rate(environment, seconds=0.01)
    assert 100 < rates["bare_env_steps_per_second"] <= 1.1 * rates["bare_env_steps_per_cpu_second"]
