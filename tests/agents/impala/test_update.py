"""IMPALA: what is learned from, once each, and how it is corrected for who acted."""

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from dm_env import specs

from troupe import environments, launch
from troupe.agents.impala import IMPALABuilder, IMPALAConfig
from troupe.agents.programs import dispatch
from troupe.environments.specs import EnvironmentSpec
from troupe.launch.local import components
from troupe.launch.local.loop import CatchUp, Loop
from troupe.launch.signals import Stop

CONFIG = IMPALAConfig(hidden_sizes=(8,), num_envs=4, rollout_length=5, batch_size=2)
NUMBER = specs.Array((), np.float32)
SPEC = EnvironmentSpec(specs.Array((3,), np.float32), specs.DiscreteArray(2), NUMBER, NUMBER)


def train(steps, **config):
    builder = IMPALABuilder(dataclasses.replace(CONFIG, **config))

    def make(*, seed, num_envs, evaluation):
        return environments.make("fake/match", seed=seed, num_envs=num_envs)

    experiment = launch.Experiment(builder, make, "fake/match", 500, seed=3)
    made = components.make(experiment, components.make_environment(experiment, 0))
    between = CatchUp(made.learner.step, made.replay, builder.steps_per_dispatch)
    Loop(made.environment, made.actor, between).advance(steps, math.inf, Stop())
    return made


@pytest.mark.parametrize(("batch_size", "fused"), [(1, 2), (4, 1), (8, 1)])
def test_every_window_is_learned_from_once(batch_size, fused):
    made = train(400, batch_size=batch_size, steps_per_dispatch=fused)
    assert made.learner.steps * batch_size == made.replay.sampled > 0
    assert made.replay.inserted - made.replay.sampled < max(batch_size * fused, 4)


@pytest.mark.parametrize("core", ["none", "gru"])
def test_a_batch_that_is_all_of_a_round_is_on_policy_and_further_ones_are_corrected(core):
    # Four environments: with batches of four every window is of the policy that learns from it.
    config = {"core": core, "core_size": 8, "learning_rate": 0.01}
    assert abs(train(200, batch_size=4, **config).learner.metrics()["kl"]) < 1e-6
    assert train(200, batch_size=1, **config).learner.metrics()["kl"] > 1e-6


def make_update(**config):
    """An update, a state, and a batch of one episode that terminates."""
    builder = IMPALABuilder(dataclasses.replace(CONFIG, max_gradient_norm=None, **config))
    networks = builder.make_networks(SPEC)
    policy = builder.make_policy(networks, SPEC)
    shapes = builder.make_replay_tables(SPEC, policy, num_envs=4).sample_shapes()
    zeros = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), dispatch.on_device(shapes))
    rng = np.random.default_rng(0)
    data = zeros.data._replace(
        observation=jnp.asarray(rng.normal(size=(2, 6, 3)), jnp.float32),
        reward=jnp.asarray(rng.normal(size=(2, 6)), jnp.float32),
        discount=jnp.asarray([[1, 1, 0, 1, 1, 1]] * 2, jnp.float32),
        step_type=jnp.asarray([[0, 1, 1, 2, 0, 1]] * 2),
        mask=jnp.ones((2, 6)),
        extras=jax.tree.map(lambda x: jnp.full(x.shape, math.log(0.5), x.dtype), zeros.data.extras),
    )
    update = builder.make_update(networks, SPEC)
    return update, update.init(jax.random.key(0)), zeros._replace(data=data)


def test_an_episode_s_last_row_is_not_learned_from():
    update, state, batch = make_update()
    changed = batch.data._replace(
        action=batch.data.action.at[:, 3].set(1), reward=batch.data.reward.at[:, 3].set(100.0)
    )
    expected, _ = update.step(state, batch)
    found, _ = update.step(state, batch._replace(data=changed))
    jax.tree.map(np.testing.assert_array_equal, found.params, expected.params)


def test_several_passes_are_as_many_steps_on_the_same_batch():
    update, state, batch = make_update(optimizer="rmsprop", anneal_steps=40)
    twice, _, _ = make_update(optimizer="rmsprop", anneal_steps=20, num_passes=2)
    expected = state
    for _ in range(2):
        expected, _ = update.step(expected, batch)
    found, output = twice.step(state, batch)
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6), found, expected
    )
    assert output.metrics["kl"] > 0


def test_nothing_is_learned_once_the_rate_is_annealed_away():
    update, state, batch = make_update(anneal_steps=10)  # One gradient step.
    state, _ = update.step(state, batch)
    after, _ = update.step(state, batch)
    jax.tree.map(np.testing.assert_array_equal, after.params, state.params)
