"""Any dm_env environment behind the types and the checks of this package."""

import dm_env
import numpy as np
import pytest
from dm_env import specs

from troupe import environments
from troupe.environments import Conform


class Own(dm_env.Environment):
    """An environment as a user may write it: numbers of 64 bits, plain floats, a list of parts."""

    def __init__(self, rewards=(1.5,), observations=None):
        self.rewards = rewards
        self.observations = observations
        self.actions = []

    def reset(self):
        self.actions.clear()
        return dm_env.restart(self._observe())

    def step(self, action):
        self.actions.append(action)
        reward = self.rewards[len(self.actions) - 1]
        if len(self.actions) == len(self.rewards):
            return dm_env.truncation(reward, self._observe(), discount=0.9)
        return dm_env.transition(reward, self._observe(), discount=0.5)

    def _observe(self):
        return [np.arange(3.0), {"count": np.int64(2)}]

    def observation_spec(self):
        count = specs.BoundedArray((), np.int64, 0, 9)
        return self.observations or [specs.Array((3,), float), {"count": count}]

    def action_spec(self):
        return specs.BoundedArray((2,), float, [-1, 0], [1, 10])


def test_values_become_32_bits_wide():
    environment = Conform(Own(rewards=(1.5, 2.0)), name="own")
    spec = environments.make_spec(environment)
    assert spec.observations[0].dtype == np.float32
    assert spec.observations[1]["count"].dtype == np.int32
    assert spec.actions.dtype == np.float32
    first, mid, last = environment.reset(), *(environment.step([0, 0]) for _ in range(2))
    assert (first.reward, first.discount) == (None, None)
    assert (mid.reward, mid.discount) == (1.5, 0.5)
    assert last.discount == np.float32(0.9)
    assert isinstance(last.observation, tuple)
    assert [leaf.dtype for leaf in (mid.reward, mid.discount, mid.observation[0])] == [
        np.float32
    ] * 3


@pytest.mark.parametrize(
    ("mode", "action", "taken"),
    [("strict", [0.5, 10], [0.5, 10]), ("clip", [-3, 11], [-1, 10]), ("rescale", [0, 0], [0, 5])],
)
def test_actions_are_written_as_in_gymnasium(mode, action, taken):
    own = Own()
    environment = Conform(own, name="own", actions=mode)
    environment.reset()
    environment.step(action)
    assert own.actions[0].dtype == np.float64
    assert own.actions[0].tolist() == taken


def test_an_action_that_does_not_fit_names_the_environment():
    environment = Conform(Own(), name="own")
    environment.reset()
    with pytest.raises(environments.InvalidActionError, match="own: action"):
        environment.step([2, 0])


def test_a_reward_that_is_not_finite_is_named():
    environment = Conform(Own(rewards=(0.0, float("nan"))), name="own")
    environment.reset()
    environment.step([0, 0])
    with pytest.raises(environments.InvalidRewardError, match="own: reward nan"):
        environment.step([0, 0])


def test_rewards_are_clipped_on_request():
    environment = Conform(Own(rewards=(7.0,)), name="own", reward_clip=2.0)
    environment.reset()
    assert environment.step([0, 0]).reward == 2.0
    with pytest.raises(environments.InvalidOptionError, match="reward_clip"):
        Conform(Own(), name="own", reward_clip=-1.0)


def test_strings_have_no_spec():
    with pytest.raises(environments.UnsupportedSpaceError, match="own"):
        Conform(Own(observations=[specs.StringArray(())]), name="own")


@pytest.mark.parametrize("declared", [False, True])
def test_complex_observations_are_refused_in_one_line(declared):
    class Wave(Own):
        def _observe(self):
            return np.ones(2, np.complex64)

    spec = specs.Array((2,), np.complex64 if declared else np.float32, "wave")
    with pytest.raises(environments.UnsupportedSpaceError, match=r"^own: .*complex64\[2\]"):
        Conform(Wave(observations=spec), name="own").reset()
