"""The actor: batches a policy, remembers what it must, writes what it sees."""

import dm_env
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from troupe.agents import ActorCore, GenericActor, VariableClient
from troupe.agents.acting import policies

FIRST, MID, LAST = dm_env.StepType


class Source:
    """Gives its variables away and counts how often it is asked."""

    def __init__(self, params):
        self.params, self.version, self.asked = params, 0, 0

    def get_variables(self, names):
        self.asked += 1
        return [self.params for _ in names]


class Recorder:
    """An adder that keeps what it is given."""

    def __init__(self):
        self.firsts, self.steps = [], []

    def add_first(self, timestep):
        self.firsts.append(timestep)

    def add(self, action, next_timestep, extras=()):
        self.steps.append((action, next_timestep, extras))

    def reset(self):
        pass


def q_policy(epsilon):
    return policies.epsilon_greedy(lambda params, observation: params @ observation, epsilon)


def timesteps(kinds, value=0.0):
    n = len(kinds)
    return dm_env.TimeStep(
        np.asarray(kinds, np.int32),
        np.zeros(n, np.float32),
        np.ones(n, np.float32),
        np.full((n, 1), value, np.float32),
    )


def counting_policy():
    """Acts by how many observations it has seen in this episode: a recurrent policy in small."""

    def select_action(params, observation, state):
        return state + 1, state + 1

    return ActorCore(
        lambda key: jnp.zeros((), jnp.int32),
        select_action,
        lambda before, after: {"memory": before},
        reset=jnp.zeros_like,
    )


def test_greedy_actions_of_one_and_of_many_environments_agree():
    params = np.asarray(np.random.default_rng(0).normal(size=(4, 3)), np.float32)
    observations = np.random.default_rng(1).normal(size=(5, 3)).astype(np.float32)
    many = GenericActor(
        q_policy(0.0), jax.random.key(0), VariableClient(Source(params)), num_envs=5
    )
    one = GenericActor(q_policy(0.0), jax.random.key(0), VariableClient(Source(params)))
    expected = np.argmax(observations @ params.T, axis=-1)
    np.testing.assert_array_equal(many.select_action(observations), expected)
    for observation, action in zip(observations, expected, strict=True):
        chosen = one.select_action(observation)
        assert chosen == action
        assert chosen.shape == ()
        assert chosen.dtype == np.int32


def test_exploration_differs_between_environments_and_repeats_with_the_key():
    params, observation = np.zeros((8, 1), np.float32), np.ones((6, 1), np.float32)

    def play(seed):
        client = VariableClient(Source(params))
        actor = GenericActor(q_policy(1.0), jax.random.key(seed), client, num_envs=6)
        return np.stack([actor.select_action(observation) for _ in range(20)])

    first = play(0)
    np.testing.assert_array_equal(first, play(0))
    assert (first != play(1)).any()
    assert len({tuple(column) for column in first.T}) == 6
    assert set(first.ravel()) == set(range(8))


def test_epsilon_is_the_share_of_actions_drawn_and_follows_its_schedule():
    params = np.eye(2, 1, dtype=np.float32)  # Action 0 is worth 1, action 1 nothing.
    policy = q_policy(lambda count: jnp.where(count < 400, 1.0, 0.2))
    actor = GenericActor(policy, jax.random.key(0), VariableClient(Source(params)), num_envs=10)
    observation = np.ones((10, 1), np.float32)
    actions = np.stack([actor.select_action(observation) for _ in range(800)])
    assert actions[:400].mean() == pytest.approx(0.5, abs=0.03)
    assert actions[400:].mean() == pytest.approx(0.1, abs=0.02)


def test_memory_is_forgotten_where_an_episode_begins_and_only_there():
    adder = Recorder()
    actor = GenericActor(
        counting_policy(), jax.random.key(0), VariableClient(Source(())), adder, num_envs=2
    )
    actor.observe_first(timesteps([FIRST, FIRST]))
    seen = []
    for kinds in ([MID, MID], [LAST, MID], [FIRST, MID], [MID, LAST]):
        seen.append(actor.select_action(np.zeros((2, 1), np.float32)).tolist())
        actor.observe(np.asarray(seen[-1]), timesteps(kinds))
    seen.append(actor.select_action(np.zeros((2, 1), np.float32)).tolist())
    assert seen == [[1, 1], [2, 2], [3, 3], [1, 4], [2, 5]]
    # What is stored is the memory that a step began with, forgotten where an episode begins.
    stored = [step[2]["memory"].tolist() for step in adder.steps]
    assert stored == [[0, 0], [1, 1], [2, 2], [0, 3]]
    assert len(adder.firsts) == 1
    assert len(adder.steps) == 4


def test_one_environment_forgets_with_observe_first():
    actor = GenericActor(counting_policy(), jax.random.key(0), VariableClient(Source(())))
    first = dm_env.restart(np.zeros(1, np.float32))
    for _ in range(2):
        actor.observe_first(first)
        assert [int(actor.select_action(first.observation)) for _ in range(3)] == [1, 2, 3]


def test_new_parameters_are_fetched_only_when_there_are_any():
    source = Source(np.eye(2, 2, dtype=np.float32))
    actor = GenericActor(q_policy(0.0), jax.random.key(0), VariableClient(source))
    observation = np.asarray([1, 0], np.float32)
    assert actor.select_action(observation) == 0
    for _ in range(3):
        actor.update()
    assert source.asked == 1
    source.params, source.version = source.params[::-1], 1
    assert actor.select_action(observation) == 0
    actor.update()
    assert actor.select_action(observation) == 1
    assert source.asked == 2


def test_a_source_without_versions_is_asked_periodically():
    class Acme:
        asked = 0

        def get_variables(self, names):
            self.asked += 1
            return [np.eye(2, dtype=np.float32)]

    source = Acme()
    client = VariableClient(source, period=4)
    assert client.params.shape == (2, 2)
    for _ in range(8):
        client.update()
    assert source.asked == 3
    client.update(wait=True)
    assert source.asked == 4


def test_saved_state_goes_on_where_it_was():
    params, observation = np.zeros((50, 1), np.float32), np.ones((3, 1), np.float32)

    def make():
        return GenericActor(
            q_policy(1.0), jax.random.key(0), VariableClient(Source(params)), num_envs=3
        )

    actor = make()
    for _ in range(5):
        actor.select_action(observation)
    saved = actor.save()
    assert all(isinstance(leaf, np.ndarray) for leaf in jax.tree.leaves(saved))
    expected = [actor.select_action(observation) for _ in range(5)]
    other = make()
    other.restore(saved)
    np.testing.assert_array_equal(expected, [other.select_action(observation) for _ in range(5)])
    with pytest.raises(ValueError, match="another"):
        make().restore({"key": saved})


def test_schedules_go_on_from_a_given_count():
    policy = q_policy(lambda count: jnp.where(count < 500, 1.0, 0.0))
    params = np.eye(2, 1, dtype=np.float32)
    actor = GenericActor(policy, jax.random.key(0), VariableClient(Source(params)), num_envs=40)
    observation = np.ones((40, 1), np.float32)
    before = actor.save()
    assert actor.select_action(observation).any()
    actor.set_num_actions(500)
    after = actor.save()
    assert (after.num_actions == 500).all()
    assert after.num_actions.dtype == np.int32
    np.testing.assert_array_equal(after.key, before.key)
    assert not actor.select_action(observation).any()


def test_a_policy_without_a_count_takes_any():
    actor = GenericActor(counting_policy(), jax.random.key(0), VariableClient(Source(())))
    actor.select_action(np.zeros(1, np.float32))
    actor.set_num_actions(7)
    assert int(actor.save()[0]) == 1
