"""Agents see images wherever they stand in an observation, and wherever their channels stand."""

import gymnasium
import numpy as np
import pytest

from troupe import environments, launch
from troupe.agents import find_builder

SIDE, LONG, LENGTH = 36, 16, 8


class Bars(gymnasium.Env):
    """Somewhere in a noisy image is a bar, upright or not, red or blue: which, is to be said."""

    def __init__(self, first, nested):
        self.first, self.nested = first, nested
        shape = (3, SIDE, SIDE) if first else (SIDE, SIDE, 3)
        image = gymnasium.spaces.Box(0, 255, shape, np.uint8)
        speed = gymnasium.spaces.Box(-1, 1, (2,), np.float32)
        self.observation_space = (
            gymnasium.spaces.Dict(camera=image, speed=speed) if nested else image
        )
        self.action_space = gymnasium.spaces.Discrete(4)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.left = LENGTH
        return self._look(), {}

    def step(self, action):
        self.left -= 1
        reward = float(action == self.right)
        return self._look(), reward, self.left == 0, False, {}

    def _look(self):
        image = self.np_random.integers(0, 60, (SIDE, SIDE, 3)).astype(np.uint8)
        upright, blue = self.np_random.integers(2, size=2)
        row, column = self.np_random.integers(SIDE - LONG, size=2)
        high, wide = (LONG, 2) if upright else (2, LONG)
        image[row : row + high, column : column + wide, 2 * blue] = 255
        self.right = 2 * upright + blue
        image = image.transpose(2, 0, 1) if self.first else image
        if not self.nested:
            return image
        return {"camera": image, "speed": self.np_random.normal(0, 0.1, 2).astype(np.float32)}


def returns(agent, config, first, nested, out, steps):
    def make_environment(*, seed, num_envs, evaluation):
        return environments.Vector(
            [
                environments.GymnasiumEnvironment(
                    Bars(first, nested), seed=environments.derive_seed(seed, i)
                )
                for i in range(num_envs)
            ]
        )

    builder = find_builder(agent)
    experiment = launch.Experiment(
        builder=builder(builder.config_class(**config)),
        environment_factory=make_environment,
        env="bars",
        num_actor_steps=steps,
        evaluation=launch.Evaluation(every=steps, final_episodes=20),
    )
    return launch.run(experiment, out, progress=False).evaluation[-1]["mean"]


DQN = {
    "hidden_sizes": (32,),
    "min_replay_size": 200,
    "max_replay_size": 4_000,
    "discount": 0.0,
    "samples_per_insert": 16.0,
    "learning_rate": 1e-3,
    "epsilon_decay_steps": 1_000,
}


@pytest.mark.long
@pytest.mark.parametrize(("first", "nested"), [(False, True), (True, False)])
def test_a_visual_task_is_learned_with_channels_first_and_last_alone_and_in_a_dict(
    first, nested, tmp_path, optimized
):
    """An MLP of the flattened image comes to 6.2 to 6.8 of these 8 in as many steps."""
    assert returns("dqn", DQN, first, nested, tmp_path / "run", 1_000) >= LENGTH - 0.5
