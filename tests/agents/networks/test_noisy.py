"""Noisy layers: their means without a key, and with one a draw that the deviations scale."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from troupe.agents.networks import core, heads
from troupe.agents.networks.noisy import NoisyLinear

D, N = 5, 3


@pytest.fixture
def network():
    return core.from_haiku(lambda x: NoisyLinear(N, 0.5, name="layer")(x), jnp.zeros((1, D)))


def weights(network, params, key):
    """The weights and biases that a draw has, found by what it says of unit vectors."""
    with_biases = network.apply(params, jnp.concatenate([jnp.eye(D), jnp.zeros((1, D))]), key=key)
    return with_biases[:-1] - with_biases[-1], with_biases[-1]


def test_without_a_key_the_weights_are_their_means(network):
    params = network.init(jax.random.key(0))
    layer = params["layer"]
    assert {name: x.shape for name, x in layer.items()} == {
        **{"w": (D, N), "w_std": (D, N), "b": (N,), "b_std": (N,)}
    }
    np.testing.assert_allclose(layer["w_std"], 0.5 / np.sqrt(D), rtol=1e-6)
    assert np.abs(layer["w"]).max() <= 1 / np.sqrt(D)
    w, b = weights(network, params, None)
    np.testing.assert_allclose(w, layer["w"], atol=1e-6)
    np.testing.assert_allclose(b, layer["b"], atol=1e-6)


def test_a_draw_is_an_outer_product_that_the_deviations_scale(network):
    params = network.init(jax.random.key(0))
    layer = params["layer"]
    w, b = weights(network, params, jax.random.key(1))
    of_units = (b - layer["b"]) / layer["b_std"]
    noise = (w - layer["w"]) / layer["w_std"]
    np.testing.assert_allclose(
        noise / of_units, (noise[:, :1] / of_units[0]) * np.ones(N), rtol=0.01
    )
    again, other = (weights(network, params, jax.random.key(seed))[0] for seed in (1, 2))
    np.testing.assert_array_equal(w, again)
    assert not np.allclose(w, other)


def test_noise_has_the_deviation_that_the_paper_gives_it(network):
    """Of f(x) f(y) with f the signed root: its mean square is the mean size of a normal, twice."""
    params = network.init(jax.random.key(0))
    keys = jax.random.split(jax.random.key(3), 4_000)
    w, b = jax.vmap(lambda key: weights(network, params, key))(keys)
    np.testing.assert_allclose(w.mean(0), params["layer"]["w"], atol=0.02)
    of_size = np.sqrt(2 / np.pi)
    np.testing.assert_allclose(w.std(0) / params["layer"]["w_std"], of_size, rtol=0.1)
    np.testing.assert_allclose(b.std(0) / params["layer"]["b_std"], np.sqrt(of_size), rtol=0.1)


@pytest.mark.parametrize("dueling", [False, True])
def test_all_layers_of_a_head_have_noise_and_deviations_a_gradient(dueling):
    def module(x):
        head = heads.dueling_values if dueling else heads.action_values
        return head(x, 2, (4,), shape=(3,), noisy_std=0.5)

    x = np.random.default_rng(0).normal(size=(6, D)).astype(np.float32)
    network = core.from_haiku(module, x)
    params, key = network.init(jax.random.key(0)), jax.random.key(1)
    gradients = jax.grad(lambda params: jnp.mean(network.apply(params, x, key=key) ** 2))(params)
    assert network.apply(params, x).shape == (6, 2, 3)
    assert all(np.abs(layer["w_std"]).max() > 0 for layer in gradients.values())
    stems = ("value", "advantage") if dueling else ("hidden",)
    layers = {f"{stem}/~/linear_{i}" for stem in stems for i in range(1 + dueling)}
    assert {*params} == layers | (set() if dueling else {"head"})
