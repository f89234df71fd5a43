"""Atari: the standard preprocessing, stacks of frames, lives."""

import gymnasium
import numpy as np
import pytest
from gymnasium.wrappers import AtariPreprocessing, FrameStackObservation

from troupe import environments
from troupe.environments import StackedArray
from troupe.environments.atari import EpisodicLife


def test_observations_are_those_of_gymnasiums_wrappers():
    ours = environments.make("ALE/Breakout-v5", seed=9)
    theirs = gymnasium.make("ALE/Breakout-v5", frameskip=1)
    theirs = FrameStackObservation(AtariPreprocessing(theirs), 4)
    random = np.random.default_rng(0)
    for episode in range(2):
        expected, _ = theirs.reset(seed=9 if episode == 0 else None)
        timestep = ours.reset()
        np.testing.assert_array_equal(timestep.observation, np.moveaxis(expected, 0, -1))
        for _ in range(30):
            action = int(random.integers(4))
            expected, reward, terminated, _, _ = theirs.step(action)
            timestep = ours.step(action)
            np.testing.assert_array_equal(timestep.observation, np.moveaxis(expected, 0, -1))
            assert (timestep.reward, timestep.last()) == (reward, terminated)
    ours.close()
    theirs.close()


def test_the_spec_says_how_frames_are_stacked():
    with environments.make("ALE/Pong-v5", seed=0) as environment:
        spec = environments.make_spec(environment)
    assert spec.observations == StackedArray((84, 84, 4), np.uint8, 0, 255, stack=4)
    assert (spec.observations.stack, spec.observations.axis) == (4, -1)
    assert spec.observations.frame.shape == (84, 84)
    assert spec.actions.num_values == 6


class Lives(gymnasium.Env):
    """A game of three lives: each is lost after two steps."""

    observation_space = gymnasium.spaces.Box(0, 99, (1,), np.uint8)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self):
        self.resets = 0

    def reset(self, *, seed=None, options=None):
        self.resets += 1
        self.t = 0
        return np.array([0], np.uint8), {"lives": 3}

    def step(self, action):
        self.t += 1
        lives = 3 - self.t // 2
        return np.array([self.t], np.uint8), 1.0, lives == 0, False, {"lives": lives}


def test_a_lost_life_ends_an_episode_but_not_the_game():
    game = Lives()
    environment = environments.GymnasiumEnvironment(EpisodicLife(game), seed=0)
    seen = []
    timestep = environment.reset()
    for _ in range(8):
        seen.append((int(timestep.step_type), int(timestep.observation[0]), timestep.discount))
        timestep = environment.step(1)
    assert seen == [
        (0, 0, None),
        (1, 1, 1.0),
        (2, 2, 0.0),
        (0, 3, None),  # The no-op that leads into the second life.
        (2, 4, 0.0),
        (0, 5, None),
        (2, 6, 0.0),
        (0, 0, None),
    ]
    assert game.resets == 2


def test_lives_of_a_real_game():
    episodic = environments.make("ALE/Breakout-v5", seed=0, episodic_life=True)
    whole = environments.make("ALE/Breakout-v5", seed=0)
    lengths = []
    for environment in (episodic, whole):
        timestep, steps = environment.reset(), 0
        while not timestep.last():
            timestep = environment.step(steps % 4)
            steps += 1
        assert timestep.discount == 0.0
        lengths.append(steps)
        environment.close()
    assert lengths[0] < lengths[1]


def test_only_games_have_lives():
    with pytest.raises(environments.InvalidOptionError, match="CartPole-v1"):
        environments.make("CartPole-v1", seed=0, episodic_life=True)


def test_nothing_is_printed(capfd):
    environments.make("ALE/Pong-v5", seed=0).close()
    captured = capfd.readouterr()
    assert captured.out + captured.err == ""
