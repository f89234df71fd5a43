"""An ensemble of critics is so many critics, each with parameters of its own."""

import haiku as hk
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from dm_env import specs

from troupe.agents.networks import critics
from troupe.agents.networks.core import from_haiku
from troupe.environments.specs import EnvironmentSpec

SPEC = EnvironmentSpec(
    observations={"far": specs.Array((3,), np.float32), "on": specs.DiscreteArray(2)},
    actions=specs.BoundedArray((2,), np.float32, -1.0, 1.0),
    rewards=specs.Array((), np.float32),
    discounts=specs.BoundedArray((), np.float32, 0.0, 1.0),
)


@pytest.fixture
def batch():
    rng = np.random.default_rng(0)
    observation = {
        "far": rng.normal(size=(6, 3)).astype(np.float32),
        "on": rng.integers(0, 2, 6).astype(np.int32),
    }
    return observation, rng.uniform(-1, 1, (6, 2)).astype(np.float32)


@pytest.mark.parametrize("size", [1, 2, 5])
def test_members_are_separate_networks(batch, size):
    x = batch[0]["far"]
    network = from_haiku(lambda x: hk.nets.MLP((8, 8, 1))(x)[..., 0], x)
    several = critics.ensemble(network, size)
    params = jax.jit(several.init)(jax.random.key(3))
    values = jax.jit(several.apply)(params, x)
    assert values.shape == (size, 6)
    for i, key in enumerate(jax.random.split(jax.random.key(3), size)):
        alone = jax.jit(network.init)(key)
        jax.tree.map(
            lambda a, b, i=i: np.testing.assert_allclose(a[i], b, rtol=1e-6), params, alone
        )
        np.testing.assert_allclose(network.apply(alone, x), values[i], rtol=1e-5, atol=1e-6)
    if size > 1:
        assert np.abs(values[0] - values[1]).max() > 1e-3


def test_gradients_of_members_do_not_mix(batch):
    network = critics.make_critic(SPEC, (8,), size=3)
    params = jax.jit(network.init)(jax.random.key(0))
    gradients = jax.grad(lambda p: jnp.sum(network.apply(p, *batch)[1] ** 2))(params)
    for leaf in jax.tree.leaves(gradients):
        assert not np.any(leaf[0])
        assert not np.any(leaf[2])
    assert any(np.any(leaf[1]) for leaf in jax.tree.leaves(gradients))


def test_a_critic_sees_observation_and_action(batch):
    network = critics.make_critic(SPEC, (8,))
    params = jax.jit(network.init)(jax.random.key(0))
    observation, action = batch
    value = jax.jit(network.apply)(params, observation, action)
    assert np.abs(network.apply(params, observation, -action) - value).max() > 1e-4
    other = {**observation, "far": -observation["far"]}
    assert np.abs(network.apply(params, other, action) - value).max() > 1e-4


def test_a_critic_may_say_more_than_a_value(batch):
    network = critics.make_critic(SPEC, (8,), size=2, num_atoms=7)
    params = jax.jit(network.init)(jax.random.key(0))
    assert network.apply(params, *batch).shape == (2, 6, 7)
