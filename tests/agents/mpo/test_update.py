"""MPO's critic of distributions, and its limits for each leaf of a nest of actions."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from dm_env import specs

from troupe.agents.losses import distributional
from troupe.agents.mpo import MPOBuilder, MPOConfig

from .. import pendulum

ATOMS = {"min_return": -10.0, "max_return": 0.0, "num_atoms": 21}


def make(**config):
    config = MPOConfig(hidden_sizes=(16,), n_step=1, distributional=True, **ATOMS, **config)
    return pendulum.make(MPOBuilder(config))


def test_the_target_is_the_mixture_of_what_the_critic_says_of_the_actions_drawn():
    """Written out, of one gradient step."""
    networks, update = make(num_samples=3, discount=0.9)
    batch = pendulum.sample(discount=1.0, reward=lambda torque: -((torque - 1.0) ** 2))
    state, data = jax.jit(update.init)(jax.random.key(0)), batch.data
    _, output = jax.jit(update.step)(state, batch)
    expected, logits = jax.jit(written_out, static_argnums=0)(networks, state, data)
    assert output.metrics["critic_loss"] == pytest.approx(float(expected), rel=1e-5)
    assert logits.shape == (len(data.reward), 21)


def written_out(networks, state, data):
    parameters = networks.policy.apply(state.targets.policy, data.next_observation)
    keys = jax.random.split(jax.random.split(state.key)[1], 3 * len(data.reward)).reshape(-1, 3)
    drawn = jax.vmap(jax.vmap(networks.actions.sample, (None, 0)))(parameters, keys)
    mixture = sum(
        jax.nn.softmax(
            networks.critic.apply(state.targets.critic, data.next_observation, drawn[:, i])[0]
        )
        for i in range(3)
    )
    logits = networks.critic.apply(state.params.critic, data.observation, data.action)[0]
    atoms = np.linspace(-10.0, 0.0, 21, dtype=np.float32)
    losses = jax.vmap(distributional.categorical_divergence, (0, 0, 0, 0, None))(
        logits, data.reward, 0.9 * data.discount, mixture / 3.0, atoms
    )
    return jnp.mean(losses), logits


def test_the_critic_learns_the_rewards():
    _, update = make(num_samples=2, learning_rate=3e-3)
    batch = pendulum.sample(discount=0.0, reward=lambda torque: -((torque - 1.0) ** 2))
    _, metrics = pendulum.learn(update, batch, 300)
    assert float(metrics["mean_q"][-1]) == pytest.approx(batch.data.reward.mean(), abs=0.3)


NESTED = {
    "choice": specs.DiscreteArray(2, np.int32),
    "push": specs.BoundedArray((1,), np.float32, -1.0, 1.0),
}


def learn_choice(**limits):
    """Learns a nest of actions that is rewarded for its choice alone.

    Returns:
      The penalties of choice, mean and deviation, and the policy's modes.
    """
    config = MPOConfig(
        **{"hidden_sizes": (16,), "n_step": 1, "num_samples": 8, "learning_rate": 3e-3},
        **{"target_update_period": 50, "initial_multiplier": 1.0},
        **limits,
    )
    builder, spec = MPOBuilder(config), pendulum.SPEC._replace(actions=NESTED)
    networks = builder.make_networks(spec)
    assert networks.actions.respects == ("whole", "mean", "deviation")
    batch, rng = pendulum.sample(discount=0.0), np.random.default_rng(0)
    taken = {
        "choice": rng.integers(0, 2, pendulum.BATCH).astype(np.int32),
        "push": rng.uniform(-1, 1, (pendulum.BATCH, 1)).astype(np.float32),
    }
    rewards = 10.0 * taken["choice"].astype(np.float32)
    batch = batch._replace(data=batch.data._replace(action=taken, reward=rewards))
    state, metrics = pendulum.learn(builder.make_update(networks, spec), batch, 300)
    assert np.isfinite(metrics["policy_loss"]).all()
    parameters = networks.policy.apply(state.params.policy, batch.data.next_observation)
    modes = jax.vmap(networks.actions.mode)(parameters)
    return jax.nn.softplus(state.params.duals.multipliers).tolist(), modes


def test_each_leaf_of_a_nest_has_a_penalty_of_its_own():
    (choice, mean, deviation), modes = learn_choice(epsilon_mean=1e-3, epsilon_scale=1e-3)
    assert choice > 1.3 * mean > 1.3 > deviation
    assert np.asarray(modes["choice"]).all()


def test_limits_are_those_of_a_leaf_s_respect():
    """Deviations may not move at all, and all else may move freely."""
    (choice, mean, deviation), _ = learn_choice(epsilon_mean=1e2, epsilon_scale=1e-9)
    assert max(choice, mean) < 0.5 < 1.0 < deviation
