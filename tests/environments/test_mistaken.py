"""Environments that do not keep to an interface are told apart in one line, with what to do."""

import dm_env
import gymnasium
import numpy as np
import pytest
from dm_env import specs

from troupe import environments
from troupe.environments import Conform, GymnasiumEnvironment, Vector

ZEROS = np.zeros(2, np.float32)


class Plain(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-1, 1, (2,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        return ZEROS, {}

    def step(self, action):
        return ZEROS, 1.0, False, False, {}


def stepping(*given):
    return {"step": lambda self, action: given if len(given) != 1 else given[0]}


def resetting(given):
    return {"reset": lambda self, *, seed=None, options=None: given}


def play(environment):
    vector = Vector([environment])
    vector.reset()
    for _ in range(3):
        vector.step(np.zeros(1, np.int32))


@pytest.mark.parametrize(
    ("methods", "words"),
    [
        (stepping(ZEROS, 1.0, False, {}), ["step", "4 values", "terminated, truncated"]),
        (stepping(None), ["step", "None", "terminated, truncated"]),
        (resetting(ZEROS), ["reset", "(observation, info)"]),
        (resetting(None), ["reset", "None", "(observation, info)"]),
        ({"reset": lambda self: ZEROS}, ["reset", "seed=None, options=None"]),
        (resetting(({"a": ZEROS}, {})), ["observation", "does not fit", "Box"]),
        (stepping(ZEROS, None, False, False, {}), ["reward None at step 1", "finite float32"]),
        (stepping(ZEROS, "1", False, False, {}), ["reward '1' at step 1", "finite float32"]),
        (stepping(ZEROS, np.ones(2), False, False, {}), ["reward array", "finite float32"]),
        (stepping(ZEROS, 1j, False, False, {}), ["reward 1j", "finite float32"]),
        (
            stepping(np.zeros(3, np.float32), 1.0, False, False, {}),
            ["environment 0", "Mistaken", "(3,)", "(2,)"],
        ),
        ({"observation_space": gymnasium.spaces.Dict({})}, ["observation", "empty"]),
        ({"observation_space": gymnasium.spaces.Box(-1, 1, (0,))}, ["observation", "empty"]),
    ],
)
def test_what_gymnasium_would_not_do_is_named(methods, words):
    mistaken = type("Mistaken", (Plain,), methods)
    with pytest.raises(environments.EnvironmentFault, match="Mistaken") as raised:
        play(GymnasiumEnvironment(mistaken(), seed=0))
    message = str(raised.value)
    assert "\n" not in message
    assert all(word in message for word in words), message


@pytest.mark.parametrize("info", [None, {}, {"success": True}])
def test_an_info_of_none_is_an_empty_one(info):
    environment = type("Ends", (Plain,), stepping(ZEROS, 1.0, True, False, info))
    play(GymnasiumEnvironment(environment(), seed=0))


class Own(dm_env.Environment):
    reward = 1.0
    first = dm_env.restart(ZEROS)

    def reset(self):
        return self.first

    def step(self, action):
        return dm_env.TimeStep(dm_env.StepType.MID, self.reward, 1.0, ZEROS)

    def observation_spec(self):
        return specs.Array((2,), np.float32)

    def action_spec(self):
        return specs.DiscreteArray(2)


@pytest.mark.parametrize(
    ("attributes", "words"),
    [
        ({"reward": None}, "reward None; rewards must be finite"),
        ({"reward": "1"}, "reward '1'; rewards must be finite"),
        ({"first": ZEROS}, r"reset .*it must be a dm_env.TimeStep"),
    ],
)
def test_what_dm_env_would_not_do_is_named(attributes, words):
    mistaken = type("Mistaken", (Own,), attributes)
    with pytest.raises(environments.EnvironmentFault, match=words):
        play(Conform(mistaken(), name="mistaken"))


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: GymnasiumEnvironment(Plain, seed=0), "class.*make an instance"),
        (lambda: GymnasiumEnvironment("CartPole-v1", seed=0), r"'CartPole-v1'.*environments.make"),
        (lambda: GymnasiumEnvironment(None, seed=0), "None"),
        (
            lambda: GymnasiumEnvironment(gymnasium.make_vec("CartPole-v1", num_envs=2), seed=0),
            "vector.*one environment each",
        ),
        (lambda: GymnasiumEnvironment(Own(), seed=0), "Conform"),
        (lambda: GymnasiumEnvironment(Plain(), seed=0, max_episode_steps="5"), "'5'"),
        (lambda: Conform(Plain(), name="x"), "GymnasiumEnvironment"),
        (lambda: Conform(None, name="x"), "None"),
        (lambda: Vector(3), "3"),
        (lambda: Vector([Plain()]), r"GymnasiumEnvironment"),
        (lambda: Vector([None]), r"None"),
    ],
)
def test_what_is_no_environment_is_named(make, words):
    with pytest.raises(environments.InvalidOptionError, match=words) as raised:
        make()
    assert "\n" not in str(raised.value)
