"""Torsos: observations of every kind become features."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from dm_env import specs

from troupe.agents.networks import heads, images, torsos
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
    assert torsos.convolves(spec)
    assert not torsos.convolves(specs.Array((2, 9, 4), bool))
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


def arrays(shape, dtype=np.uint8, count=2):
    numbers = np.random.default_rng(0).integers(0, 256, (count, *shape))
    return (numbers if dtype == np.uint8 else numbers / 255).astype(dtype)


@pytest.mark.parametrize(
    ("shape", "order", "dtype"),
    [
        ((3, 40, 44), (1, 2, 0), np.uint8),
        ((12, 40, 44), (1, 2, 0), np.uint8),
        ((3, 40, 44), (1, 2, 0), np.float32),
        ((3, 7, 8), (1, 2, 0), np.uint8),
        ((4, 40, 44, 3), (1, 2, 0, 3), np.uint8),
        ((4, 3, 40, 44), (2, 3, 0, 1), np.uint8),
        ((4, 3, 40, 44), (2, 3, 0, 1), np.float32),
        ((40, 44, 3, 4), (0, 1, 2, 3), np.uint8),
        ((40, 44), (0, 1), np.uint8),
    ],
)
def test_images_are_convolved_wherever_their_channels_stand(shape, order, dtype):
    x = arrays(shape, dtype)
    rows, columns, *channels = (shape[axis] for axis in order)
    last = x.transpose(0, *(1 + axis for axis in order))
    last = last.reshape(2, rows, columns, int(np.prod(channels)))
    features = []
    for given in (x, last):
        spec = specs.BoundedArray(given.shape[1:], dtype, 0, 255 if dtype == np.uint8 else 1)
        network = from_haiku(lambda x, spec=spec: torsos.make_torso(spec, (7,))(x), given)
        params = network.init(jax.random.key(0))
        assert any(w.ndim == 4 for layer in params.values() for w in layer.values())
        features.append(network.apply(params, given))
    np.testing.assert_allclose(*features, atol=1e-5)


def test_each_image_of_a_nest_has_convolutions_of_its_own():
    spec = {
        "front": specs.BoundedArray((3, 40, 40), np.uint8, 0, 255),
        "hand": specs.BoundedArray((36, 36, 1), np.uint8, 0, 255),
        "map": specs.Array((7, 7, 2), np.float32),
        "pose": specs.Array((3,), np.float32),
    }
    assert torsos.convolves(spec)
    x = {name: arrays(leaf.shape, leaf.dtype) for name, leaf in spec.items()}
    network = from_haiku(lambda x: torsos.make_torso(spec, ())(x), x)
    params = network.init(jax.random.key(0))
    assert {name.partition("/")[0] for name in params} == {
        "nature_torso", "nature_torso_1", "grid_torso"
    }  # fmt: skip
    features = network.apply(params, x)
    assert features.shape == (2, 2 * 512 + 5 * 5 * 16 + 3)
    np.testing.assert_array_equal(features[:, -3:], x["pose"])
    for name in spec:
        other = network.apply(params, {**x, name: x[name][::-1]})
        assert not np.allclose(other, features), name
    network = from_haiku(lambda x: torsos.make_torso(spec, (7,), torso="residual")(x), x)
    params = jax.eval_shape(network.init, jax.random.key(0))
    assert {name.partition("/")[0] for name in params} == {
        "residual_torso", "residual_torso_1", "residual_torso_2", "mlp"
    }  # fmt: skip
    assert jax.eval_shape(network.apply, params, x).shape == (2, 7)


def test_networks_of_a_plain_observation_keep_the_names_of_their_parameters():
    """Else no checkpoint of before could be gone on from."""
    for shape, dtype, names in (
        ((4,), np.float32, ["mlp/~/linear_0"]),
        ((36, 36, 2), np.uint8, ["linear", "conv2_d", "conv2_d_1", "conv2_d_2"]),
        ((8, 8, 3), np.uint8, ["grid_torso/conv2_d", "mlp/~/linear_0"]),
        ((40, 40, 3), np.float32, ["grid_torso/conv2_d", "mlp/~/linear_0"]),
    ):
        spec = specs.Array(shape, dtype)
        network = from_haiku(
            lambda x, spec=spec: torsos.make_torso(spec, (7,))(x), np.zeros((1, *shape), dtype)
        )
        found = jax.eval_shape(network.init, jax.random.key(0))
        if dtype == np.uint8 and shape[0] == 36:
            names = [f"nature_torso/{name}" for name in names]
        assert sorted(found) == sorted(names)


def test_what_looks_like_an_image_and_is_none_of_the_deep_networks_is_told():
    def told(shape, dtype=np.float32):
        return images.remarks(
            {"camera": specs.Array(shape, dtype), "pose": specs.Array((3,), "f4")}
        )

    (flat,) = told((4, 10, 10))
    assert re.search(r"observation\['camera'\] of float32\[4, 10, 10\].*is flattened.*uint8", flat)
    (grid,) = told((84, 84, 3))
    assert re.search(r"float32\[84, 84, 3\].*one convolution.*as uint8", grid)
    assert told((64, 64))
    assert told((28, 28), np.uint8)
    for shape in ((3, 84, 84), (84, 84, 3), (84, 84), (10, 10, 4), (12,)):
        assert not told(shape, np.uint8), shape
    assert not told((6, 6))
    assert not told((10, 10, 4))
    assert images.remarks(specs.Array((64, 64), np.float32))[0].startswith("the observation of")


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
