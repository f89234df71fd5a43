"""Layers against those of haiku: parameters, values and gradients in batches of any size."""

import haiku as hk
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from troupe.agents.networks import columns as layers
from troupe.agents.networks import core


def _ours(x):
    return layers.Linear(2, name="head")(layers.MLP((32, 16), activate_final=True)(x))


def _haikus(x):
    return hk.Linear(2, name="head")(hk.nets.MLP((32, 16), activate_final=True)(x))


@pytest.mark.parametrize("columns", [range(0), range(5, 65)], ids=["rows", "columns"])
@pytest.mark.parametrize("size", [1, 64, 300])
def test_like_haiku(monkeypatch, columns, size):
    monkeypatch.setattr(layers, "_COLUMNS", columns)
    x = np.random.default_rng(0).normal(size=(size, 7)).astype(np.float32)
    ours, haikus = (core.from_haiku(module, x[:1]) for module in (_ours, _haikus))
    params = ours.init(jax.random.key(1))
    jax.tree.map(np.testing.assert_array_equal, params, haikus.init(jax.random.key(1)))

    def value_and_gradient(network):
        return jax.value_and_grad(lambda p: jnp.mean(network.apply(p, x) ** 2))(params)

    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6),
        value_and_gradient(ours),
        value_and_gradient(haikus),
    )


@pytest.mark.parametrize("size", [1, 64])
def test_an_mlp_may_end_without_its_activation(size):
    x = np.full((size, 3), -1.0, np.float32)
    ours = core.from_haiku(lambda x: layers.MLP((8, 4))(x), x)
    haikus = core.from_haiku(lambda x: hk.nets.MLP((8, 4))(x), x)
    params = ours.init(jax.random.key(0))
    values = ours.apply(params, x)
    np.testing.assert_allclose(values, haikus.apply(params, x), rtol=1e-5)
    assert values.min() < 0.0
