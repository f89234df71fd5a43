"""Policies: noise, distributions, and memories whose steps a learner can compute again."""

import dm_env
import haiku as hk
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from dm_env import specs

from troupe import environments
from troupe.agents import GenericActor, VariableClient
from troupe.agents.acting import policies
from troupe.agents.networks import distributions, recurrent
from troupe.agents.networks.torsos import flatten
from troupe.agents.networks.transformer import gated_transformer
from troupe.agents.replay import EmbeddedReplay, ReplaySpec, Rollouts, Sequences
from troupe.environments import make_spec


class Source:
    version = 0

    def __init__(self, params):
        self._params = params

    def get_variables(self, names):
        return [self._params for _ in names]


def make_actor(policy, params=(), num_envs=None, adder=None, seed=0):
    client = VariableClient(Source(params))
    return GenericActor(policy, jax.random.key(seed), client, adder, num_envs=num_envs)


def test_gaussian_noise_has_its_deviation_and_keeps_the_bounds():
    low, high = jnp.asarray([-1.0, 0.0]), jnp.asarray([1.0, 10.0])
    policy = policies.gaussian_noise(
        lambda params, observation: observation, low, high, lambda count: jnp.where(count, 0.1, 9.0)
    )
    actor = make_actor(policy, num_envs=4_000)
    observation = np.tile(np.float32([0.2, 4.0]), (4_000, 1))
    wild = actor.select_action(observation)
    assert (wild >= low).all()
    assert (wild <= high).all()
    assert (wild == np.asarray(low)).any()
    assert (wild == np.asarray(high)).any()
    calm = actor.select_action(observation)
    np.testing.assert_allclose(calm.mean(0), [0.2, 4.0], atol=0.05)
    np.testing.assert_allclose(calm.std(0), [0.1, 0.5], rtol=0.05)
    np.testing.assert_array_equal(
        make_actor(policies.gaussian_noise(lambda p, o: o, low, high, 0.0)).select_action(
            observation[0]
        ),
        observation[0],
    )


def test_a_policy_of_a_distribution_stores_how_likely_its_action_was():
    actions = distributions.tanh_gaussian(np.float32([-1.0]), np.float32([2.0]))
    policy = policies.stochastic(lambda params, o: params * o, actions, stores_log_prob=True)
    params = jnp.asarray([0.5, -1.0])
    observation = np.ones((3, 2), np.float32)
    steps = policies.batch(policy)
    state = jax.vmap(policy.init)(jax.random.split(jax.random.key(0), 3))
    action, extras, _ = steps(params, observation, state, np.ones(3, bool))
    expected = jax.vmap(actions.log_prob)(params * observation, action)
    np.testing.assert_allclose(extras["log_prob"], expected, rtol=1e-3)
    assert len(np.unique(action)) == 3
    best = make_actor(policies.mode(lambda params, o: params * o, actions), params)
    np.testing.assert_allclose(best.select_action(observation[0]), actions.mode(params), rtol=1e-6)


@pytest.fixture
def spec():
    with environments.make("fake/ragged", seed=0, num_envs=1) as environment:
        return make_spec(environment)


def make_network(spec, core):
    to_vector = flatten(spec.observations)
    num_actions = spec.actions.num_values
    return recurrent.make_recurrent(
        spec.observations,
        lambda observation: jax.nn.relu(hk.Linear(8)(to_vector(observation))),
        core(6),
        lambda features: hk.Linear(num_actions)(features),
    )


def valued(network):
    """Greedy by the values that the network says, which it stores: what must be found again."""

    def select_action(params, values, state):
        action = jnp.argmax(values).astype(jnp.int32)
        return action, values

    choose = policies.ActorCore(
        lambda key: jnp.zeros(network.values), select_action, lambda before, after: after
    )
    return policies.recurrent(network.network.step, network.network.initial_state, choose)


class Valued:
    def __init__(self, spec, core):
        self.network = make_network(spec, core)
        self.values = spec.actions.num_values
        self.params = jax.tree.map(
            lambda x: 3.0 * x, self.network.init(jax.random.key(2))
        )  # Large, so that what is remembered matters.
        self.policy = valued(self)


def extras_spec(policy):
    state = jax.eval_shape(policy.init, jax.random.key(0))
    return jax.eval_shape(policy.get_extras, state, state)


def play(agent, item, num_envs, batch_size, steps=120):
    """The replay after an actor wrote into it."""
    environment = environments.make("fake/ragged", seed=3, num_envs=num_envs)
    spec = make_spec(environment)
    replay = EmbeddedReplay(
        ReplaySpec(item, batch_size, max_size=10_000),
        spec,
        extras_spec(agent.policy),
        num_envs=num_envs,
        seed=1,
    )
    actor = make_actor(agent.policy, agent.params, num_envs, replay.adder())
    timestep = environment.reset()
    actor.observe_first(timestep)
    samples = []
    for _ in range(steps):
        action = actor.select_action(timestep.observation)
        timestep = environment.step(action)
        actor.observe(action, timestep)
        if isinstance(item, Rollouts) and replay.can_sample():
            samples.append(replay.sample())
    environment.close()
    return samples or [replay.sample() for _ in range(5)]


def small_transformer(size):
    return gated_transformer(size, num_layers=2, num_heads=1, memory_length=3)


SEQUENCES, ROLLOUTS = (Sequences(6, 3), 16), (Rollouts(20), 6)


@pytest.mark.parametrize(
    ("core", "item", "batch_size"),
    [
        (recurrent.lstm, *SEQUENCES),
        (recurrent.gru, *ROLLOUTS),
        (small_transformer, *SEQUENCES),
        (small_transformer, *ROLLOUTS),
    ],
)
def test_unrolling_from_the_stored_memory_gives_the_values_again(spec, core, item, batch_size):
    agent = Valued(spec, core)
    boundaries = rows = 0
    for sample in play(agent, item, num_envs=3, batch_size=batch_size):
        data = sample.data
        stored = jax.tree.map(lambda x: x[:, 0], data.extras.memory)
        first = data.step_type == dm_env.StepType.FIRST
        values, _ = agent.network.unroll(agent.params, data.observation, stored, first)
        acted = (data.mask == 1) & (data.step_type != dm_env.StepType.LAST)
        if isinstance(item, Rollouts):
            acted[:, -1] = False  # What followed the last row is the next window's.
        # Two programs of one function: their sums are of terms as large as the largest value.
        scale = np.abs(data.extras.choice[acted]).max()
        np.testing.assert_allclose(
            values[acted], data.extras.choice[acted], rtol=1e-4, atol=1e-4 * scale
        )
        np.testing.assert_array_equal(np.argmax(values, -1)[acted], data.action[acted])
        boundaries += int(first[:, 1:].sum())
        rows += int(acted.sum())
    assert rows > 200
    assert (boundaries > 10) == isinstance(item, Rollouts)  # Resets within the windows.


def test_memories_are_those_that_steps_begin_with(spec):
    agent = Valued(spec, recurrent.lstm)
    (sample, *_) = play(agent, Rollouts(30), num_envs=2, batch_size=2)
    first = sample.data.step_type == dm_env.StepType.FIRST
    for leaf in jax.tree.leaves(sample.data.extras.memory):
        assert not leaf[first].any()
        assert leaf[:, 1:-1][~first[:, 1:-1] & (sample.data.step_type[:, 1:-1] == 1)].any()


def test_several_environments_are_each_as_alone(spec):
    """The same observations and episodes, as a vector and one environment at a time."""
    agent = Valued(spec, recurrent.gru)
    n, steps = 3, 60
    environment = environments.make("fake/ragged", seed=5, num_envs=n)
    many = make_actor(agent.policy, agent.params, n)
    timestep = environment.reset()
    many.observe_first(timestep)
    seen, chosen = [timestep], []
    for _ in range(steps):
        chosen.append(many.select_action(timestep.observation))
        timestep = environment.step(chosen[-1])
        many.observe(chosen[-1], timestep)
        seen.append(timestep)
    environment.close()
    for i in range(n):
        one = make_actor(agent.policy, agent.params)
        for t in range(steps):
            row = jax.tree.map(lambda x, i=i: x[i], seen[t])
            if row.step_type == dm_env.StepType.FIRST:
                one.observe_first(row)
            if row.step_type == dm_env.StepType.LAST:
                continue  # The vector acts here, and what it does there means nothing.
            assert int(one.select_action(row.observation)) == int(chosen[t][i])


def test_a_recurrent_policy_counts_as_the_policy_that_chooses_does(spec):
    network = make_network(spec, recurrent.gru)
    policy = policies.recurrent(
        network.step, network.initial_state, policies.epsilon_greedy(lambda _, q: q, 0.5)
    )
    actor = make_actor(policy, network.init(jax.random.key(0)), 2)
    actor.set_num_actions(40)
    actor.select_action(np.zeros((2, *spec.observations.shape), np.float32))
    assert actor.save().choice.num_actions.tolist() == [41, 41]


def test_streams_have_numbers_that_epsilon_may_go_by(spec):
    """Of three environments of one actor and two of another, all but two always draw."""
    choose = policies.epsilon_greedy(
        lambda params, q_values: q_values,
        lambda count, stream: jnp.where(stream % 3 == 1, 0.0, 1.0),
        by_stream=True,
    )
    policy = policies.recurrent(lambda params, x, memory: (x, memory), jnp.zeros(()), choose)
    values = np.tile(np.arange(1_000.0, dtype=np.float32), (3, 1))
    first, second = make_actor(policy, num_envs=3), make_actor(policy, num_envs=2)
    second.set_streams(3)
    chosen = [*first.select_action(values), *second.select_action(values[:2])]
    assert [action == 999 for action in chosen] == [False, True, False, False, True]
    assert second.save().choice.stream.tolist() == [3, 4]
    plain = make_actor(policies.deterministic(lambda params, x: x), num_envs=2)
    plain.set_streams(7)


@pytest.mark.parametrize(
    "spec",
    [
        specs.BoundedArray((2,), np.float32, [-1.0, 0.0], [1.0, 10.0]),
        specs.DiscreteArray(3),
        specs.BoundedArray((2,), np.int32, 0, [1, 4]),
    ],
)
def test_the_first_actions_are_uniform_and_then_the_policy_s(spec):
    chosen = jnp.asarray(spec.minimum + 0 * spec.generate_value(), spec.dtype)
    base = policies.epsilon_greedy(lambda params, o: jnp.zeros(2), 0.0)
    fixed = base._replace(
        select_action=lambda params, o, state: (chosen, base.select_action(params, o, state)[1])
    )
    actor = make_actor(policies.uniform_first(fixed, spec, 2), num_envs=2_000)
    observation = np.zeros((2_000, 1), np.float32)
    first, second, third = (actor.select_action(observation) for _ in range(3))
    for drawn in (first, second):
        middle = (np.asarray(spec.minimum) + spec.maximum) / 2
        np.testing.assert_allclose(drawn.mean(0), middle + 0 * drawn[0], atol=0.3)
        for action in drawn[:50]:
            spec.validate(action)
    assert (first != second).any()
    np.testing.assert_array_equal(third, np.broadcast_to(chosen, third.shape))
    assert policies.uniform_first(fixed, spec, 0) is fixed
