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
@pytest.mark.parametrize("wide", [24, 256])
def test_like_haiku(monkeypatch, columns, size, wide):
    monkeypatch.setattr(layers, "_COLUMNS", columns)
    monkeypatch.setattr(layers, "_WIDE", wide)
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


@pytest.mark.parametrize(("size", "wide"), [(23, 24), (24, 24), (64, 24), (64, 33), (64, 65)])
def test_wide_layers_of_many_rows_stay_rows(monkeypatch, size, wide):
    monkeypatch.setattr(layers, "_COLUMNS", range(5, 65))
    monkeypatch.setattr(layers, "_WIDE", wide)
    x = np.zeros((size, 7), np.float32)
    network = core.from_haiku(_ours, x)
    params = network.init(jax.random.key(0))
    equations = jax.make_jaxpr(network.apply)(params, x).eqns
    products = [e for e in equations if e.primitive is jax.lax.dot_general_p]
    in_rows = [e.invars[0].aval.shape[0] == size for e in products]
    # Of 7 to 32 to 16 units, and of 16 to 2.
    assert in_rows == [min(size, 32) >= wide] * 2 + [min(size, 16) >= wide]
