"""Torsos: observations of every kind become features."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from dm_env import specs

from troupe.agents.networks import heads, torsos
from troupe.agents.networks.core import from_haiku

NESTED = {
    "bytes": specs.Array((2, 2), np.uint8),
    "choice": specs.DiscreteArray(3),
    "numbers": specs.Array((), np.float32),
}


def test_nested_observations_become_one_vector():
    observation = {
        "bytes": np.full((2, 2, 2), 255, np.uint8),
        "choice": np.asarray([0, 2]),
        "numbers": np.asarray([0.5, -3.0], np.float32),
    }
    vector = torsos.flatten(NESTED)(observation)
    np.testing.assert_array_equal(vector, [[1, 1, 1, 1, 1, 0, 0, 0.5], [1, 1, 1, 1, 0, 0, 1, -3.0]])
    assert vector.dtype == np.float32


def test_an_mlp_without_layers_gives_the_numbers():
    spec = specs.Array((3,), np.float32)
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    network = from_haiku(lambda x: torsos.make_torso(spec, ())(x), x)
    np.testing.assert_array_equal(network.apply(network.init(jax.random.key(0)), x), x)


def test_images_go_through_convolutions():
    spec = specs.Array((36, 36, 2), np.uint8)
    assert torsos.is_image(spec)
    assert not torsos.is_image(specs.Array((8, 8, 2), np.uint8))
    image = np.random.default_rng(0).integers(0, 256, (2, 36, 36, 2)).astype(np.uint8)
    network = from_haiku(lambda x: torsos.make_torso(spec, (7,))(x), image)
    features = jax.jit(network.apply)(jax.jit(network.init)(jax.random.key(0)), image)
    assert features.shape == (2, 512)


def test_grids_go_through_one_convolution_before_the_mlp():
    spec = specs.BoundedArray((10, 9, 4), bool, False, True)
    assert torsos.is_grid(spec)
    assert torsos.convolves(spec)
    assert not torsos.is_grid(specs.Array((84, 84, 4), np.uint8))
    assert not torsos.is_grid(specs.Array((2, 9, 4), bool))
    grid = np.random.default_rng(0).integers(0, 2, (3, 10, 9, 4)).astype(bool)
    for sizes, width, count in (((), 1, 8 * 7 * 16), ((7,), 1, 7), ((), 2, 8 * 7 * 32)):
        network = from_haiku(
            lambda x, sizes=sizes, width=width: torsos.make_torso(spec, sizes, width=width)(x), grid
        )
        params = network.init(jax.random.key(0))
        assert params["grid_torso/conv2_d"]["w"].shape == (3, 3, 4, 16 * width)
        assert network.apply(params, grid).shape == (3, count)
        # The features follow where the things are, which no sum over the cells does.
        assert not np.allclose(network.apply(params, grid), network.apply(params, grid[:, ::-1]))


def test_the_residual_torso_has_its_fifteen_convolutions_and_takes_small_boards():
    spec = specs.Array((10, 9, 4), np.float32)
    board = np.random.default_rng(0).normal(size=(2, 10, 9, 4)).astype(np.float32)
    network = from_haiku(lambda x: torsos.make_torso(spec, (), torso="residual", width=2)(x), board)
    params = jax.eval_shape(network.init, jax.random.key(0))
    kernels = [w.shape for layer in params.values() for w in layer.values() if w.ndim == 4]
    assert len(kernels) == 15
    assert kernels[0] == (3, 3, 4, 32)
    features = jax.eval_shape(network.apply, params, board)
    assert features.shape == (2, 512)


def test_a_torso_that_observations_are_nothing_for_is_refused():
    with pytest.raises(ValueError, match=r"torso is residual.*float32\[3\]; leave torso at auto"):
        torsos.make_torso(specs.Array((3,), np.float32), (), torso="residual")
    with pytest.raises(ValueError, match=r"uint8 of at least 36 x 36"):
        torsos.make_torso(specs.Array((8, 8, 3), np.uint8), (), torso="nature")


def test_dueling_advantages_are_over_their_mean():
    x = np.random.default_rng(0).normal(size=(5, 4)).astype(np.float32)
    network = from_haiku(lambda x: heads.dueling_values(x, 3, (8,)), x)
    params = network.init(jax.random.key(0))
    values = network.apply(params, x)
    name = next(name for name in params if name.startswith("advantage") and "1" in name)
    params[name]["b"] = params[name]["b"] + 7.0  # The same for all actions: says nothing.
    np.testing.assert_allclose(network.apply(params, x), values, atol=1e-5)
    assert jnp.std(values, axis=-1).min() > 1e-3
