"""The Gymnasium adapter: how episodes end, what the seed does, what is refused."""

import dm_env
import gymnasium
import numpy as np
import pytest

from troupe import environments
from troupe.environments import GymnasiumEnvironment, UnsupportedSpaceError


class Scripted(gymnasium.Env):
    """Gives the rewards and the ends that it is told to give, one for each step."""

    def __init__(self, rewards, terminated=(), truncated=(), shape=(2,)):
        self.observation_space = gymnasium.spaces.Box(-1, 1, shape, np.float64)
        self.action_space = gymnasium.spaces.Discrete(2)
        self.rewards, self.terminated, self.truncated = rewards, terminated, truncated
        self.seeds = []
        self.t = 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.seeds.append(seed)
        self.t = 0
        return np.zeros(2), {}

    def step(self, action):
        self.t += 1
        observation = np.full(2, self.t / 100)
        ended = (self.t in self.terminated, self.t in self.truncated)
        return observation, self.rewards[self.t - 1], *ended, {}


def run(environment, actions):
    """(step type, reward, discount, observation) of a reset and of a step for each action."""
    timesteps = [environment.reset(), *(environment.step(action) for action in actions)]
    return [(t.step_type, t.reward, t.discount, np.copy(t.observation)) for t in timesteps]


def assert_same(left, right):
    for a, b in zip(left, right, strict=True):
        assert a[:3] == b[:3]
        np.testing.assert_array_equal(a[3], b[3])


@pytest.mark.parametrize(
    ("terminated", "truncated", "discount"),
    [((2,), (), 0.0), ((), (2,), 1.0), ((2,), (2,), 0.0)],
)
def test_termination_is_kept_apart_from_truncation(terminated, truncated, discount):
    scripted = Scripted([1.0, 2.0], terminated, truncated)
    steps = run(GymnasiumEnvironment(scripted, seed=0), [0, 0, 0])
    kinds, rewards, discounts, _ = zip(*steps, strict=True)
    first, mid, last = dm_env.StepType
    assert kinds == (first, mid, last, first)
    assert rewards == (None, 1.0, 2.0, None)
    assert discounts == (None, 1.0, discount, None)


def test_values_are_of_32_bits():
    step = GymnasiumEnvironment(Scripted([1.0]), seed=0)
    step.reset()
    timestep = step.step(0)
    assert isinstance(timestep, dm_env.TimeStep)
    assert timestep.observation.dtype == np.float32
    assert type(timestep.reward) is np.float32
    assert type(timestep.discount) is np.float32


def test_the_seed_is_used_once_and_the_stream_goes_on():
    scripted = Scripted([1.0], terminated=(1,))
    run(GymnasiumEnvironment(scripted, seed=7), [0, 0, 0, 0])
    assert scripted.seeds == [7, None, None]


@pytest.mark.parametrize(
    "id",
    ["CartPole-v1", "Pendulum-v1", "HalfCheetah-v5", "LunarLander-v3", "MinAtar/Seaquest-v1"],
)
def test_a_seed_repeats_the_episodes_of_gymnasium_itself(id):
    ours = environments.make(id, seed=11, max_episode_steps=20)
    theirs = gymnasium.make(id, max_episode_steps=20)
    theirs.action_space.seed(5)
    for episode in range(3):
        observation, _ = theirs.reset(seed=11 if episode == 0 else None)
        timestep = ours.reset()
        np.testing.assert_array_equal(timestep.observation, observation.astype(np.float32))
        while not timestep.last():
            action = theirs.action_space.sample()
            observation, reward, terminated, truncated, _ = theirs.step(action)
            timestep = ours.step(action)
            np.testing.assert_array_equal(timestep.observation, observation.astype(np.float32))
            assert timestep.reward == np.float32(reward)
            assert timestep.last() == (terminated or truncated)
            assert timestep.discount == (0.0 if terminated else 1.0)
    ours.close()
    theirs.close()


def test_different_seeds_give_different_episodes():
    first = [environments.make("CartPole-v1", seed=seed).reset().observation for seed in range(4)]
    assert len({observation.tobytes() for observation in first}) == 4


def test_a_reset_within_an_episode_starts_the_next():
    one, other = (environments.make("CartPole-v1", seed=1) for _ in range(2))
    one.reset()
    one.step(0)
    other.reset()
    assert_same(run(one, [1, 1]), run(other, [1, 1]))


def test_the_registered_time_limit_truncates():
    environment = environments.make("Pendulum-v1", seed=0)
    steps = run(environment, [np.zeros(1, np.float32)] * 200)
    assert [kind for kind, *_ in steps].index(dm_env.StepType.LAST) == 200
    assert steps[-1][2] == 1.0


@pytest.mark.parametrize("reward", [float("nan"), float("inf"), np.float64(1e39)])
def test_a_reward_that_is_not_finite_is_named(reward):
    environment = GymnasiumEnvironment(Scripted([0.0, reward]), seed=0, name="Broken-v0")
    environment.reset()
    environment.step(0)
    with pytest.raises(environments.InvalidRewardError, match=r"Broken-v0.*step 2 of episode 1"):
        environment.step(0)


def test_rewards_are_clipped_on_request():
    environment = GymnasiumEnvironment(Scripted([5.0, -5.0, 0.5]), seed=0, reward_clip=1.0)
    rewards = [reward for _, reward, *_ in run(environment, [0, 0, 0])]
    assert rewards == [None, 1.0, -1.0, 0.5]
    assert environment.reward_spec().maximum == 1.0


def test_an_observation_of_another_shape_than_declared_is_refused():
    environment = GymnasiumEnvironment(Scripted([0.0], shape=(3,)), seed=0)
    with pytest.raises(environments.EnvironmentFault, match=r"\(2,\).*\(3,\)"):
        environment.reset()


@pytest.mark.parametrize("action", [2, -1, 0.5, None, np.zeros(2, int)])
def test_an_action_that_does_not_fit_is_refused(action):
    environment = environments.make("CartPole-v1", seed=0)
    environment.reset()
    with pytest.raises(environments.InvalidActionError, match="CartPole-v1: action") as caught:
        environment.step(action)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("seed", [-1, 1.5, "one", None])
def test_a_seed_must_be_a_number_of_at_least_0(seed):
    with pytest.raises(environments.InvalidOptionError, match="seed"):
        environments.make("CartPole-v1", seed=seed)


def test_frames_are_rendered_on_request():
    with environments.make("CartPole-v1", seed=0, render_mode="rgb_array") as environment:
        environment.reset()
        frame = environment.render_frame()
    assert frame.dtype == np.uint8
    assert frame.shape == (400, 600, 3)
    assert frame.std() > 0


def test_frames_cannot_be_rendered_otherwise():
    with pytest.raises(environments.InvalidOptionError, match="render_mode='rgb_array'"):
        environments.make("CartPole-v1", seed=0).render_frame()


def test_a_failure_to_render_is_one_line(monkeypatch):
    environment = environments.make("CartPole-v1", seed=0, render_mode="rgb_array")
    environment.reset()

    def fail():
        raise AttributeError("no\ndisplay")

    monkeypatch.setattr(environment.unwrapped, "render", fail)
    with pytest.raises(environments.RenderError, match=r"CartPole-v1: .*image: no display"):
        environment.render_frame()


def test_statistics_of_gymnasiums_own_wrappers_are_told():
    inner = gymnasium.wrappers.NormalizeReward(
        gymnasium.wrappers.NormalizeObservation(Scripted([1.0]))
    )
    wrapped = GymnasiumEnvironment(inner, seed=0)
    found = environments.Vector([wrapped]).remarks
    for name, said in zip(("NormalizeReward", "NormalizeObservation"), found, strict=True):
        for words in ("Scripted", name, "neither shared", "nor saved", "normalized+AGENT"):
            assert words in said
    assert not environments.Vector([GymnasiumEnvironment(Scripted([1.0]), seed=0)]).remarks


@pytest.mark.filterwarnings("error")
def test_complex_observations_are_refused_in_one_line():
    """Cast to the space's dtype they would lose their imaginary part."""

    class Wave(Scripted):
        def reset(self, *, seed=None, options=None):
            return np.ones(2, np.complex64) * 1j, {}

    expected = r"^Wave: .*complex64\[2\].*real and imaginary parts"
    with pytest.raises(UnsupportedSpaceError, match=expected) as found:
        GymnasiumEnvironment(Wave([1.0]), seed=0).reset()
    assert "\n" not in str(found.value)
