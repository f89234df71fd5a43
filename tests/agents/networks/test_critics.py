"""An ensemble of critics is so many critics, each with parameters of its own."""

import haiku as hk
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from dm_env import specs

from troupe.agents import find_builder
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


@pytest.mark.parametrize(("kind", "layers"), [("layer_norm", 2), ("residual", 3)])
def test_normalised_critics(batch, kind, layers):
    """Of each hidden size; blocks once more before the value."""
    network = critics.make_critic(SPEC, (16, 16), size=2, kind=kind)
    params = jax.jit(network.init)(jax.random.key(0))
    assert len([name for name in params if "layer_norm" in name]) == layers
    values = jax.jit(network.apply)(params, *batch)
    assert values.shape == (2, 6)
    # A hidden layer's scale is taken out again, before a rectifier or the value.
    scaled = {
        name: {part: leaf * (3.0 if name == "linear" else 1.0) for part, leaf in layer.items()}
        for name, layer in params.items()
    }
    same = np.allclose(network.apply(scaled, *batch), values, rtol=1e-3, atol=1e-3)
    assert same == (kind == "layer_norm")  # A block adds to what it gets.


def test_blocks_that_add_nothing_leave_a_linear_value(batch):
    network = critics.make_critic(SPEC, (16, 16), size=1, kind="residual")
    params = jax.jit(network.init)(jax.random.key(0))
    for name in ("linear_2", "linear_4"):  # The second layer of each block.
        params[name] = jax.tree.map(jnp.zeros_like, params[name])
    observation, action = batch
    x = np.concatenate([observation["far"], np.eye(2)[observation["on"]], action], 1)
    one = jax.tree.map(lambda leaf: np.asarray(leaf)[0], params)
    x = x @ one["linear"]["w"] + one["linear"]["b"]
    x = (x - x.mean(1, keepdims=True)) / np.sqrt(x.var(1, keepdims=True) + 1e-5)
    expected = (x @ one["linear_5"]["w"] + one["linear_5"]["b"])[:, 0]
    np.testing.assert_allclose(network.apply(params, *batch)[0], expected, rtol=1e-4, atol=1e-5)


@pytest.fixture
def on_spheres():
    network = critics.make_critic(SPEC, (8, 8), size=2, kind="hyperspherical")
    return network, network.init(jax.random.key(0))


def test_critics_on_spheres_by_hand(batch, on_spheres):
    network, params = on_spheres
    rng = np.random.default_rng(1)
    for layer in params.values():  # None of them is told by its value at first.
        if "scale" in layer:
            layer["scale"] *= rng.uniform(0.5, 2.0, layer["scale"].shape)
    one = {name: np.asarray(next(iter(layer.values())))[0] for name, layer in params.items()}

    def unit(x, axis=1):
        return x / np.linalg.norm(x, axis=axis, keepdims=True)

    observation, action = batch
    x = np.concatenate(
        [observation["far"], np.eye(2)[observation["on"]], action, np.full((6, 1), 3.0)], 1
    )
    x = unit(unit(x) @ one["unit_linear"] * one["scale"])
    for block in range(2):
        wide = x @ one[f"unit_linear_{1 + 2 * block}"] * one[f"scale_{1 + 2 * block}"]
        there = unit(np.maximum(wide, 0) @ one[f"unit_linear_{2 + 2 * block}"])
        x = unit(x + one[f"scale_{2 + 2 * block}"] * np.sqrt(8) / 3 * (there - x))
    expected = (x @ one["unit_linear_5"] * one["scale_5"] @ one["unit_linear_6"])[:, 0]
    np.testing.assert_allclose(network.apply(params, *batch)[0], expected, rtol=1e-4, atol=1e-5)


def test_weights_on_spheres_are_directions(batch, on_spheres):
    """Their norms are 1 at first, and count for nothing before a norm is taken out."""
    network, params = on_spheres
    weights = [layer["unit_w"] for layer in params.values() if "unit_w" in layer]
    assert len(weights) == 7
    for weight in weights:
        np.testing.assert_allclose(np.linalg.norm(weight, axis=-2), 1.0, rtol=1e-5)
    scaled = {**params, "unit_linear": {"unit_w": 3.0 * params["unit_linear"]["unit_w"]}}
    np.testing.assert_allclose(network.apply(scaled, *batch), network.apply(params, *batch), 1e-4)


def test_critics_that_classify_give_logits(batch):
    config = find_builder("sac").config_class(
        critic_loss="categorical", num_atoms=11, hidden_sizes=(8,)
    )
    shapes = [
        jax.eval_shape(network.apply, jax.eval_shape(network.init, jax.random.key(0)), *inputs)
        for network, inputs in (
            (critics.of_config(SPEC, config), batch),
            (critics.of_every_action(SPEC, config, 4), batch[:1]),
        )
    ]
    assert [shape.shape for shape in shapes] == [(2, 6, 11), (2, 6, 4, 11)]


@pytest.mark.parametrize("kind", ["residual", "hyperspherical"])
@pytest.mark.parametrize("name", ["sac", "td3", "d4pg", "mpo", "cql", "iql", "crr"])
def test_every_agent_with_critics_takes_them(name, kind):
    builder_class = find_builder(name)
    config = builder_class.config_class(
        critic_network=kind, critic_hidden_sizes=(24, 24), hidden_sizes=(8,)
    )
    networks = builder_class(config).make_networks(SPEC)
    shapes = jax.eval_shape(networks.critic.init, jax.random.key(0))
    assert {leaf.shape[-1] for leaf in jax.tree.leaves(shapes)} >= {24, 96}
    policy = jax.eval_shape(networks.policy.init, jax.random.key(0))
    assert {leaf.shape[-1] for leaf in jax.tree.leaves(policy)} >= {8}


@pytest.mark.parametrize("kind", ["residual", "hyperspherical"])
def test_blocks_are_of_one_size(kind):
    with pytest.raises(ValueError, match=f"is {kind} and .*all must be equal"):
        find_builder("td3").config_class(critic_network=kind, critic_hidden_sizes=(8, 16))


@pytest.mark.parametrize("kind", ["mlp", "layer_norm", "residual", "hyperspherical"])
def test_units_are_left_out_where_there_is_a_key(kind, batch):
    """Other ones for each key, critic and row; without a key all count."""
    plain = critics.make_critic(SPEC, (8, 8), kind=kind)
    network = critics.make_critic(SPEC, (8, 8), kind=kind, dropout=0.5)
    params = network.init(jax.random.key(0))
    assert jax.tree.map(jnp.shape, params) == jax.tree.map(jnp.shape, plain.init(jax.random.key(0)))
    one = jax.tree.map(lambda x: jnp.repeat(x[:1], 2, axis=0), params)
    same = jax.tree.map(lambda x: np.repeat(x[:1], 6, axis=0), batch)
    whole = network.apply(one, *same)
    np.testing.assert_allclose(whole, plain.apply(one, *same), rtol=1e-6)
    assert np.ptp(whole) < 1e-5
    first, again, other = (network.apply(one, *same, key=jax.random.key(k)) for k in (1, 1, 2))
    np.testing.assert_array_equal(first, again)
    assert np.abs(first - other).max() > 1e-3
    assert np.abs(first[0] - first[1]).max() > 1e-3
    assert np.ptp(first[0]) > 1e-3
