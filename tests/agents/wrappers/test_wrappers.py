"""Wrappers: how they are named and composed, and what each changes of an agent."""

import pickle

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from dm_env import StepType, specs

from troupe import environments
from troupe.agents import find_builder
from troupe.agents.replay import Sample, SampleInfo, Sequence, Transition
from troupe.agents.wrappers import wrapper

FIRST, MID, LAST = (int(kind) for kind in StepType)
LAST_ROW = 6
"""Of the first episode of `rollouts`."""
SPEC = environments.EnvironmentSpec(
    specs.Array((2,), np.float32),
    specs.DiscreteArray(3),
    specs.Array((), np.float32),
    specs.BoundedArray((), np.float32, 0.0, 1.0),
)


def make(agent, **config):
    """A builder's networks and update."""
    builder_class = find_builder(agent)
    builder = builder_class(builder_class.config_class(hidden_sizes=(8,), **config))
    networks = builder.make_networks(SPEC)
    update = builder.make_update(networks, SPEC)
    return builder, networks, update._replace(init=jax.jit(update.init), step=jax.jit(update.step))


def sample_of(data, size):
    ones = jnp.ones(size)
    return Sample(SampleInfo(None, ones / 100, 100 * ones), data)


def transitions(observation, next_observation=None):
    """A batch whose rewards are 0."""
    observation = jnp.asarray(observation, jnp.float32)
    size = len(observation)
    following = observation if next_observation is None else next_observation
    zeros, actions = jnp.zeros(size), jnp.zeros(size, jnp.int32)
    data = Transition(observation, actions, zeros, zeros, jnp.asarray(following, jnp.float32))
    return sample_of(data, size)


def rollouts(key, envs=2, length=8):
    """Of two episodes each, whose numbers are drawn far from 0."""
    keys, shape = jax.random.split(key, 3), (envs, length + 1)
    kinds = jnp.asarray([FIRST, *[MID] * (length - 3), LAST, FIRST, MID], jnp.int32)
    data = Sequence(
        5.0 + 3.0 * jax.random.normal(keys[0], (*shape, 2)),
        jax.random.randint(keys[1], shape, 0, 3),
        jax.random.normal(keys[2], shape),
        jnp.ones(shape),
        jnp.broadcast_to(kinds, shape),
        jnp.ones(shape),
        {"log_prob": jnp.full(shape, -1.1)},
    )
    return sample_of(data, envs)


def test_a_wrapped_agent_is_a_class_that_can_be_pickled():
    builder_class = find_builder("normalized+rnd+dqn")
    assert find_builder("normalized+rnd+dqn") is builder_class
    builder = builder_class(builder_class.config_class(novelty_scale=2.0, n_step=3))
    again = pickle.loads(pickle.dumps(builder))
    assert type(again) is builder_class
    assert again.config == builder.config
    assert issubclass(builder_class, find_builder("rnd+dqn"))
    # Defaults are the agent's own, where a wrapper inherits others.
    assert builder.steps_per_dispatch == find_builder("dqn")().steps_per_dispatch


def test_wrappers_that_there_are_not_are_refused_in_one_line():
    with pytest.raises(ValueError, match=r"no wrapper 'rmd'.*normalized_rewards, rnd"):
        find_builder("rmd+dqn")
    with pytest.raises(ValueError, match="twice in rnd\\+rnd\\+dqn"):
        find_builder("rnd+rnd+dqn")
    with pytest.raises(ValueError, match="Did you mean dqn"):
        find_builder("rnd+dqm")


def test_normalised_ppo_learns_what_ppo_learns_that_normalises_itself():
    config = {"num_envs": 2, "rollout_length": 8, "num_minibatches": 1, "num_epochs": 1}
    _, _, outer = make("normalized+ppo", **config)
    _, _, inner = make("ppo", normalize_observations=True, **config)
    state, batch = outer.init(jax.random.key(0)), rollouts(jax.random.key(1))
    own = state.agent._replace(variables=state.agent.variables._replace(statistics=state.wrapper))
    for _ in range(2):  # The second is with statistics of the first.
        state, own = outer.step(state, batch)[0], inner.step(own, batch)[0]
    published = outer.variables(state)["policy"]
    expected = inner.variables(own)["policy"]
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6),
        (published.params.params, published.statistics),
        (expected.params, expected.statistics),
    )


def test_a_normalised_policy_acts_as_the_agent_does_on_what_it_is_given():
    builder, networks, update = make("normalized+dqn", epsilon_start=0.0, epsilon_end=0.0)
    state = update.init(jax.random.key(0))
    observation = 100.0 + 7.0 * jax.random.normal(jax.random.key(1), (64, 2))
    state, _ = update.step(state, transitions(observation))
    variables = update.variables(state)["policy"]
    np.testing.assert_allclose(variables.statistics.mean, jnp.mean(observation, 0), rtol=1e-5)
    core = builder.make_policy(networks, SPEC, evaluation=True)
    action, _ = core.select_action(variables, observation[0], core.init(jax.random.key(0)))
    spread = jnp.std(observation, 0)
    white = (observation[0] - jnp.mean(observation, 0)) / spread
    assert action == jnp.argmax(networks.apply_one(variables.params, white))


def test_what_was_often_seen_is_less_new():
    _, _, update = make("rnd+dqn", novelty_learning_rate=1e-2)
    often, never = (jnp.tile(jnp.array(x), (16, 1)) for x in ([1.0, -1.0], [-3.0, 2.0]))
    state, step = update.init(jax.random.key(0)), update.step
    before = [step(state, transitions(x))[1].metrics["novelty_loss"] for x in (often, never)]
    for seed in range(60):
        noise = 0.3 * jax.random.normal(jax.random.key(seed), often.shape)
        state, _ = step(state, transitions(often + noise))
    after = [step(state, transitions(x))[1].metrics["novelty_loss"] for x in (often, never)]
    assert after[0] < 0.1 * before[0]
    assert after[1] > 5.0 * after[0]


def test_novelty_is_of_what_followed_within_an_episode():
    batch = rollouts(jax.random.key(0)).data
    observation, mask = wrapper.followed(batch)
    np.testing.assert_array_equal(observation, batch.observation[:, 1:])
    np.testing.assert_array_equal(mask, (batch.step_type != LAST)[:, :-1])
    new = wrapper.with_reward(batch, jnp.zeros(mask.shape))
    np.testing.assert_array_equal(new.reward[:, -1], batch.reward[:, -1])
    assert not np.any(new.reward[:, :-1])


def test_novelty_is_added_to_rewards_in_its_own_deviation():
    """With values of nothing learned, DQN's errors are the rewards."""
    _, _, update = make("rnd+dqn", discount=0.0, novelty_scale=1.0)
    _, _, plain = make("dqn", discount=0.0)
    state = update.init(jax.random.key(0))
    seen = transitions(jnp.ones((4, 2)))
    _, output = update.step(state, seen)
    reward = output.metrics["novelty"]
    assert reward == pytest.approx(float(output.metrics["novelty_loss"]), rel=1e-5)  # Deviation 1.
    told = seen._replace(data=seen.data._replace(reward=jnp.full(4, reward)))
    _, expected = plain.step(state.agent, told)
    assert output.metrics["loss"] == pytest.approx(float(expected.metrics["loss"]), rel=1e-5)


def with_rewards(seen, rewards):
    return seen._replace(data=seen.data._replace(reward=jnp.asarray(rewards, jnp.float32)))


@pytest.mark.parametrize("scale", [1e-3, 1.0, 500.0])
def test_an_agent_learns_from_rewards_over_the_root_of_their_mean_square(scale):
    _, _, update = make("normalized_rewards+dqn", discount=0.0)
    _, _, plain = make("dqn", discount=0.0)
    state, rewards = update.init(jax.random.key(0)), np.array([3.0, -4.0, 0.0, 1.0])
    seen = transitions(jnp.ones((4, 2)))
    for step in range(2):
        batch = rewards * scale * (1 + step)  # The second is seen beside the first.
        agent = state.agent
        state, output = update.step(state, with_rewards(seen, batch))
        so_far = (rewards * scale) ** 2 * (1.0 if step == 0 else 2.5)
        told = batch / np.sqrt(so_far.mean())
        _, expected = plain.step(agent, with_rewards(seen, told))
        assert output.metrics["loss"] == pytest.approx(float(expected.metrics["loss"]), rel=2e-2)


def test_normalised_rewards_have_a_limit_and_are_of_steps_alone():
    _, _, update = make("normalized_rewards+dqn", discount=0.0, reward_limit=1.5)
    _, _, plain = make("dqn", discount=0.0)
    state, seen = update.init(jax.random.key(0)), transitions(jnp.ones((16, 2)))
    rare = np.zeros(16)
    rare[0] = 7.0  # Over the root of its mean square: 4.
    _, output = update.step(state, with_rewards(seen, rare))
    _, expected = plain.step(state.agent, with_rewards(seen, rare / 7.0 * 1.5))
    assert output.metrics["loss"] == pytest.approx(float(expected.metrics["loss"]), rel=1e-5)

    config = {"num_envs": 2, "rollout_length": 8, "num_minibatches": 1, "num_epochs": 1}
    _, _, update = make("normalized_rewards+ppo", **config)
    batch = rollouts(jax.random.key(1))
    spoiled = batch.data.reward.at[:, LAST_ROW].set(1e3)  # No step is taken from that row.
    steps = [
        update.step(update.init(jax.random.key(0)), batch._replace(data=data))[0].wrapper
        for data in (batch.data, batch.data._replace(reward=spoiled))
    ]
    assert steps[0].mean_square == steps[1].mean_square
    is_step = (np.asarray(batch.data.step_type) != LAST)[:, :-1]
    mean = np.mean(np.asarray(batch.data.reward)[:, :-1][is_step] ** 2)
    np.testing.assert_allclose(steps[0].mean_square, mean, rtol=1e-5)
