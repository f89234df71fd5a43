"""SAC: what its temperature keeps, and how its targets move."""

import jax
import numpy as np
import pytest
from dm_env import specs

from troupe.agents.replay.items import Sample, SampleInfo, Transition
from troupe.agents.sac import SACBuilder, SACConfig
from troupe.environments.specs import EnvironmentSpec

from .. import pendulum


def make_update(**config):
    return pendulum.make(SACBuilder(SACConfig(hidden_sizes=(16,), **config)))[1]


@pytest.mark.parametrize("target_entropy", [-1.0, 0.5, None])
def test_the_policy_keeps_the_entropy_that_is_asked_for(target_entropy):
    update = make_update(target_entropy=target_entropy, learning_rate=1e-2)
    _, metrics = pendulum.learn(update, pendulum.sample(discount=0.0), 800)
    # None: -1 where the range is from -1 to 1; that of a pendulum's torque is twice as wide.
    wanted = np.log(2.0) - 1.0 if target_entropy is None else target_entropy
    assert np.mean(metrics["entropy"][-300:]) == pytest.approx(wanted, abs=0.15)


@pytest.mark.parametrize(("period", "rate"), [(1, 0.25), (3, 1.0)])
def test_the_target_follows_the_critics(period, rate):
    update = make_update(target_update_period=period, target_update_rate=rate)
    state, step = update.init(jax.random.key(1)), jax.jit(update.step)
    for count in range(1, 7):
        before = state
        state, _ = step(state, pendulum.sample())
        part = rate if count % period == 0 else 0.0
        jax.tree.map(
            lambda target, old, new, part=part: np.testing.assert_allclose(
                target, part * new + (1 - part) * old, rtol=1e-5, atol=1e-6
            ),
            state.target_critic,
            before.target_critic,
            state.params.critic,
        )


def test_targets_of_some_critics():
    """With all of them drawn critics learn what they learn without, and the policy from the mean;
    with one they learn something else."""

    def after(**config):
        update = make_update(num_critics=4, **config)
        state, _ = jax.jit(update.step)(update.init(jax.random.key(1)), pendulum.sample())
        return state.params

    usual, whole, one = after(), after(num_target_critics=4), after(num_target_critics=1)
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6),
        usual.critic,
        whole.critic,
    )
    for mine, other in ((usual.policy, whole.policy), (usual.critic, one.critic)):
        pairs = zip(jax.tree.leaves(mine), jax.tree.leaves(other), strict=True)
        assert any(np.abs(a - b).max() > 1e-6 for a, b in pairs)
    with pytest.raises(ValueError, match="no more can be drawn"):
        SACConfig(num_target_critics=3)


def test_choices_come_to_the_soft_optimum():
    """Critics to the rewards of all choices, the policy to their softmax by the temperature, and
    that to the entropy that is asked for."""
    observation, action = (x.reshape(-1) for x in np.meshgrid([0, 1], range(3), indexing="ij"))
    rewards = np.array([[1.0, 0.0, 0.5], [0.0, 2.0, 0.0]], np.float32)
    seen = np.eye(2, dtype=np.float32)[observation]
    spec = EnvironmentSpec(
        observations=specs.Array((2,), np.float32),
        actions=specs.DiscreteArray(3),
        rewards=specs.Array((), np.float32),
        discounts=specs.BoundedArray((), np.float32, 0.0, 1.0),
    )
    config = SACConfig(hidden_sizes=(32,), learning_rate=1e-2, target_entropy=0.7)
    builder = SACBuilder(config)
    networks = builder.make_networks(spec)
    update = builder.make_update(networks, spec)
    ones = np.ones(6, np.float32)
    data = Transition(seen, action.astype(np.int32), rewards.reshape(-1), 0 * ones, seen)
    batch = Sample(SampleInfo(None, ones, ones), data)
    state, metrics = pendulum.learn(update, batch, 1500)
    q = networks.critic.apply(state.params.critic, np.eye(2, dtype=np.float32)).min(0)
    np.testing.assert_allclose(q, rewards, atol=0.05)
    temperature = float(metrics["temperature"][-1])
    logits = networks.policy.apply(state.params.policy, np.eye(2, dtype=np.float32))
    np.testing.assert_allclose(
        jax.nn.softmax(logits), jax.nn.softmax(rewards / temperature), atol=0.05
    )
    assert float(metrics["entropy"][-1]) == pytest.approx(0.7, abs=0.05)


def test_critics_with_dropout_learn_from_other_values_at_each_step():
    batch = pendulum.sample(discount=0.0)

    def losses(**config):
        update = make_update(learning_rate=0.0, **config)
        state, step = update.init(jax.random.key(1)), jax.jit(update.step)
        found = []
        for _ in range(3):
            state, output = step(state, batch)
            found.append(float(output.metrics["critic_loss"]))
        return found

    assert len({*losses(critic_dropout=0.5)}) == 3
    assert len({*losses()}) == 1
