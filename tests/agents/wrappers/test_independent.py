"""Agents that share no parameters: each row is computed and learned from by its agent alone."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from dm_env import StepType, specs

from troupe import environments, launch
from troupe.agents import find_builder
from troupe.agents.learning import normalization
from troupe.agents.networks.windows import ObservedWindow
from troupe.agents.replay import Sample, SampleInfo, Sequence, Transition
from troupe.agents.wrappers.independent import independent
from troupe.environments.multiagent import observations

from ..rows import FULL

AGENTS, ROWS, LENGTH = 3, 6, 5
DISCRETE, BOX = specs.DiscreteArray(2), specs.BoundedArray((2,), np.float32, -1.0, 1.0)
GRU = {"core": "gru", "core_size": 4}


def spec_of(actions):
    seen, _ = observations.with_indicator(
        specs.Array((2,), np.float32, "observation"), [None] * AGENTS, "a test"
    )
    reward, discount = specs.Array((), np.float32), specs.BoundedArray((), np.float32, 0.0, 1.0)
    return environments.EnvironmentSpec(seen, actions, reward, discount)


def make(agent, actions=DISCRETE, **config):
    builder_class = find_builder(agent)
    builder = builder_class(
        builder_class.config_class(num_agents=AGENTS, hidden_sizes=(8,), **config)
    )
    spec = spec_of(actions)
    return builder, builder.make_networks(spec), spec


def observed(agents, length=None):
    """Random observations [B, ...] of these agents, or [B, length, ...]."""
    lead = (len(agents),) if length is None else (len(agents), length)
    seen = np.random.default_rng(1).normal(size=(*lead, 2)).astype(np.float32)
    who = np.eye(AGENTS, dtype=np.float32)[agents]
    who = who if length is None else np.broadcast_to(who[:, None], (*lead, AGENTS))
    return jnp.asarray(np.concatenate([seen, who], -1))


def transitions(agents, actions):
    rng, size = np.random.default_rng(2), len(agents)
    action = (
        rng.integers(2, size=size).astype(np.int32)
        if actions is DISCRETE
        else rng.uniform(-1, 1, (size, 2)).astype(np.float32)
    )
    reward = rng.normal(size=size).astype(np.float32)
    seen = observed(agents)
    data = Transition(seen, action, reward, np.full(size, 0.9, np.float32), seen[::-1])
    ones = jnp.ones(size)
    return Sample(SampleInfo(None, ones / size, ones), data)


@pytest.mark.parametrize(
    ("agent", "actions", "config"),
    [
        ("independent+rainbow", DISCRETE, {}),
        ("independent+td3", BOX, {"critic_network": "hyperspherical"}),
        *(
            pytest.param(*case, marks=pytest.mark.skipif(not FULL, reason="set TROUPE_FULL=1"))
            for case in (
                ("independent+dqn", DISCRETE, {}),
                ("independent+sac", DISCRETE, {"num_critics": 4, "num_target_critics": 2}),
                ("independent+sac", BOX, {"critic_dropout": 0.1, "critic_network": "layer_norm"}),
                ("independent+d4pg", BOX, {}),
                ("independent+mpo", BOX, {"num_samples": 3}),
            )
        ),
    ],
)
def test_rows_of_one_agent_change_no_other(agent, actions, config):
    builder, networks, spec = make(agent, actions, **config)
    update = builder.make_update(networks, spec)
    state = update.init(jax.random.key(0))
    step = jax.jit(update.step)
    before = update.variables(state)["policy"]
    for _ in range(3):
        state, _ = step(state, transitions([1] * ROWS, actions))
    after = update.variables(state)["policy"]
    changed = {
        next(str(key.key) for key in path if str(getattr(key, "key", "")).startswith("agent_"))
        for (path, one), other in zip(
            jax.tree_util.tree_leaves_with_path(before), jax.tree.leaves(after), strict=True
        )
        if "agent_" in jax.tree_util.keystr(path) and not np.array_equal(one, other)
    }
    assert changed == {"agent_1"}


def test_normalised_observations_say_whose_they_are():
    builder, networks, spec = make("normalized+independent+dqn")
    update = builder.make_update(networks, spec)
    state, _ = jax.jit(update.step)(
        update.init(jax.random.key(0)), transitions([0, 1, 1, 1, 2, 1], DISCRETE)
    )
    variables = update.variables(state)["policy"]
    agents = [1, 0, 2, 2, 1, 0]
    seen = normalization.apply(variables.statistics, observed(agents))
    np.testing.assert_array_equal(np.argmax(observations.indicator(seen, AGENTS), -1), agents)


def test_rows_are_computed_by_their_own_agent():
    _, networks, _ = make("independent+td3", BOX)
    _, alone, _ = make("independent+td3", BOX)
    params = networks.critic.init(jax.random.key(0))
    agents = [2, 0, 1, 1, 2, 0]
    seen, action = observed(agents), jnp.ones((ROWS, 2))
    found = networks.critic.apply(params, seen, action)
    assert found.shape == (2, ROWS)
    for i, agent in enumerate(agents):
        same = dict.fromkeys(params, params[f"agent_{agent}"])
        expected = alone.critic.apply(same, seen, action)
        np.testing.assert_allclose(found[:, i], expected[:, i], rtol=1e-6)
    first, second = (jax.tree.leaves(params[f"agent_{i}"]) for i in range(2))
    assert not all(map(np.array_equal, first, second))


@pytest.mark.parametrize("agent", ["independent+impala", "independent+ppo", "independent+r2d2"])
def test_memories_are_of_their_own_agent(agent):
    _, networks, _ = make(agent, **GRU)
    network = getattr(networks, "network", networks)
    params = network.init(jax.random.key(0))
    agents = [2, 0, 1]
    seen = observed(agents, LENGTH)
    memory = jax.tree.map(lambda x: jnp.broadcast_to(x, (3, *x.shape)), network.initial_state)
    first = jnp.zeros((3, LENGTH), bool)
    whole, after = network.unroll(params, seen, memory, first)
    for i, one in enumerate(agents):
        state = network.initial_state
        for t in range(LENGTH):
            output, state = network.step(params, seen[i, t], state)
            expected = jax.tree.map(lambda x, i=i, t=t: x[i, t], whole)
            jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5), output, expected)
        last = jax.tree.map(lambda x, i=i: x[i], after)
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5), state, last)
        same = dict.fromkeys(params, params[f"agent_{one}"])
        alone, _ = network.unroll(same, seen, memory, first)
        jax.tree.map(lambda a, b, i=i: np.testing.assert_allclose(a[i], b[i]), whole, alone)


def test_windows_are_of_their_own_agent():
    _, networks, _ = make("independent+sac", BOX, **GRU, burn_in=1)
    agents = [1, 2]
    memory = jax.tree.map(
        lambda x: jnp.broadcast_to(x, (2, *x.shape)), networks.policy.initial_state
    )
    window = ObservedWindow(observed(agents, LENGTH), memory, jnp.zeros((2, LENGTH), bool))
    action = jnp.ones((2 * LENGTH, 2))
    for network, inputs in ((networks.policy, (window,)), (networks.critic, (window, action))):
        params = network.init(jax.random.key(0))
        found = network.apply(params, *inputs)
        axis = found.shape.index(2 * LENGTH)
        for i, one in enumerate(agents):
            same = network.apply(dict.fromkeys(params, params[f"agent_{one}"]), *inputs)
            rows = range(i * LENGTH, (i + 1) * LENGTH)
            np.testing.assert_allclose(
                jnp.take(found, jnp.array(rows), axis), jnp.take(same, jnp.array(rows), axis)
            )


def test_a_rollout_of_one_agent_changes_no_other():
    builder, networks, spec = make("independent+impala")
    update = builder.make_update(networks, spec)
    state = update.init(jax.random.key(0))
    shape = (4, LENGTH)
    kinds = np.full(shape, int(StepType.MID), np.int32)
    rng = np.random.default_rng(3)
    extras = jax.tree.map(
        lambda s: np.zeros((*shape, *s.shape), s.dtype),
        builder.make_extras_spec(builder.make_policy(networks, spec)),
    )
    data = Sequence(
        observed([0] * 4, LENGTH),
        rng.integers(2, size=shape).astype(np.int32),
        rng.normal(size=shape).astype(np.float32),
        np.ones(shape, np.float32),
        kinds,
        np.ones(shape, np.float32),
        extras,
    )
    sample = Sample(SampleInfo(None, jnp.ones(4), jnp.ones(4)), data)
    after, _ = jax.jit(update.step)(state, sample)
    same = {
        name: all(
            np.array_equal(a, b)
            for a, b in zip(
                jax.tree.leaves(state.params[name]),
                jax.tree.leaves(after.params[name]),
                strict=True,
            )
        )
        for name in state.params
    }
    assert same == {"agent_0": False, "agent_1": True, "agent_2": True}


@pytest.mark.parametrize(
    ("agent", "config", "spec", "message"),
    [
        ("independent+dqn", {}, None, "of environments of several agents"),
        ("independent+muzero", {"num_agents": AGENTS}, None, "networks of states"),
        ("independent+dqn", {"num_agents": 4}, None, "do not say which of 4 agents"),
        ("independent+dqn", {"num_agents": 2}, "plain", "do not say which of 2 agents"),
    ],
)
def test_agents_that_cannot_be_told_apart_are_refused(agent, config, spec, message):
    builder_class = find_builder(agent)
    builder = builder_class(builder_class.config_class(**config))
    found = spec_of(DISCRETE)
    if spec == "plain":
        found = found._replace(observations=specs.Array((5,), np.float32))
    with pytest.raises(ValueError, match=message):
        builder.make_networks(found)


def test_an_agent_that_is_refused_is_not_offered_instead():
    builder_class = find_builder("independent+muzero")
    builder = builder_class(builder_class.config_class(num_agents=AGENTS))
    experiment = launch.Experiment(builder, environments.make, "several", 100)
    with pytest.raises(launch.RequestError, match=r"Agents that can: .*ppo") as error:
        experiment.make_networks(spec_of(DISCRETE))
    assert "dqn, " in str(error.value)
    assert "muzero, " not in str(error.value)


def test_names_are_those_of_parameters():
    _, networks, _ = make("independent+dqn")
    assert list(networks.init(jax.random.key(0))) == [f"agent_{i}" for i in range(AGENTS)]
    assert independent(networks, 2)._fields == networks._fields
