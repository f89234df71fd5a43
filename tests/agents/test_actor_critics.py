"""What agents with a policy and critics of its actions have in common. A new one adds a row."""

import jax
import numpy as np
import pytest

from troupe.agents import find_builder

from . import pendulum

AGENTS = {
    "d4pg": {"min_return": -10.0, "max_return": 0.0, "n_step": 1},
    "sac": {"initial_temperature": 0.1},
    "td3": {},
    "td3 of critics on spheres that classify": {
        **{"critic_network": "hyperspherical", "critic_loss": "categorical"},
        **{"min_return": -15.0, "max_return": 5.0, "num_atoms": 41},
    },
}


@pytest.fixture(params=AGENTS)
def builder(request):
    builder_class = find_builder(request.param.partition(" ")[0])
    config = {"hidden_sizes": (32,), "learning_rate": 3e-3, **AGENTS[request.param]}
    return builder_class(builder_class.config_class(**config))


def test_critics_learn_the_rewards_and_the_policy_climbs_them(builder):
    """Rewards that ask for a torque of 1, and nothing to bootstrap from."""
    networks, update = pendulum.make(builder)
    batch = pendulum.sample(discount=0.0, reward=lambda torque: -((torque - 1.0) ** 2))
    state, metrics = pendulum.learn(update, batch, 800)
    assert metrics["critic_loss"][-1] < 0.1 * metrics["critic_loss"][0]
    assert float(metrics["mean_q"][-1]) == pytest.approx(batch.data.reward.mean(), abs=0.2)
    policy = builder.make_policy(networks, pendulum.SPEC, evaluation=True)
    params = update.variables(state)["policy"]
    chosen, _ = jax.vmap(policy.select_action, (None, 0, None))(params, batch.data.observation, ())
    np.testing.assert_allclose(np.median(chosen), 1.0, atol=0.4)


def test_an_exploring_policy_begins_with_anything_and_keeps_the_bounds(builder):
    config = builder.config
    explorer = type(builder)(type(config)(random_steps=4, hidden_sizes=(8,)))
    networks, update = pendulum.make(explorer)
    params = update.variables(update.init(jax.random.key(0)))["policy"]
    policy = explorer.make_policy(networks, pendulum.SPEC, num_streams=2)
    observation = np.zeros(3, np.float32)

    def act(key):
        states, actions = [policy.init(key)], []
        for _ in range(3):
            action, state = policy.select_action(params, observation, states[-1])
            states.append(state)
            actions.append(action)
        return actions

    first, second, third = jax.vmap(act)(jax.random.split(jax.random.key(0), 500))
    # Of a uniform distribution from -2 to 2, in the four steps that two environments share.
    np.testing.assert_allclose([np.std(first), np.std(second)], 4 / np.sqrt(12), rtol=0.1)
    assert abs(np.std(third) - 4 / np.sqrt(12)) > 0.1
    assert np.abs(third).max() <= 2.0
