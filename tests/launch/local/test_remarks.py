"""What a run says of its environment before its first step, once."""

import dataclasses

import gymnasium
import numpy as np
import pytest

from troupe import environments, launch
from troupe.agents import find_builder
from troupe.launch.conformance import table
from troupe.launch.distributed.deploy import deploy
from troupe.launch.remarks import remarks

from .test_run import Lines

CONFIG = {"hidden_sizes": (4,), "min_replay_size": 8, "max_replay_size": 50, "batch_size": 4}


class Corridor(gymnasium.Env):
    """Four frames of ten by ten numbers, the frames first: too small to be plainly an image."""

    observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (4, 10, 10), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.left = 4
        return np.zeros((4, 10, 10), np.float32), {}

    def step(self, action):
        self.left -= 1
        return np.zeros((4, 10, 10), np.float32), 0.0, self.left == 0, False, {}


@pytest.fixture
def experiment():
    def make_environment(*, seed, num_envs, evaluation):
        normal = gymnasium.wrappers.NormalizeObservation
        made = [
            environments.GymnasiumEnvironment(normal(Corridor()), seed=seed)
            for _ in range(num_envs)
        ]
        return environments.Vector(made)

    builder = find_builder("dqn")
    return launch.Experiment(
        builder=builder(builder.config_class(**CONFIG)),
        environment_factory=make_environment,
        env="corridor",
        num_actor_steps=40,
        evaluation=launch.Evaluation(every=20, episodes=1, final_episodes=1),
    )


EXPECTED = (
    "NormalizeObservation",
    "the observation of float32[4, 10, 10] looks like an image but is flattened",
)


def test_a_run_says_them_once_before_its_first_step(experiment, tmp_path):
    reporter = Lines()
    launch.run(experiment, tmp_path / "run", reporter=reporter)
    for expected in EXPECTED:
        (place,) = [i for i, line in enumerate(reporter.lines) if expected in line]
        assert reporter.lines[place].startswith("warning: ")
        assert place in (1, 2)  # Behind the line that names the run.
    assert EXPECTED[0] in (tmp_path / "run" / "logs" / "main.log").read_text()


def test_a_deployment_has_them(experiment, tmp_path):
    found = deploy(experiment, tmp_path / "run").remarks
    for expected in EXPECTED:
        assert sum(expected in one for one in found) == 1


def test_check_says_them(experiment):
    found = next(table.check(experiment))
    assert (found.name, found.status) == ("environment", "ok")
    for expected in EXPECTED:
        assert f"warning: {expected}" in found.text or expected in found.text


def test_nothing_is_said_of_images_where_the_torso_is_the_users_own(experiment):
    config = dataclasses.replace(experiment.builder.config, torso="one:own")
    own = dataclasses.replace(experiment, builder=find_builder("dqn")(config))
    with own.make_environment(seed=0, num_envs=1, evaluation=False) as environment:
        assert not [one for one in remarks(own, environment) if "looks like" in one]
