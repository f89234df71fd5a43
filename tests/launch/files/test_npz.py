"""Nests as files: what is written is read, and nothing else is."""

import io
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from troupe.launch.files import npz


def through_a_file(nest, like=None):
    file = io.BytesIO()
    npz.write(file, nest)
    file.seek(0)
    return npz.read(file, like)


class Pair(NamedTuple):
    left: object
    right: object


def test_plain_containers_come_back_as_they_were():
    nest = {
        "none": None,
        "flags": [True, False],
        "numbers": (1, -2.5, float("inf"), 2**200),
        "text": "ä\n",
        "empty": {"dict": {}, "list": [], "tuple": ()},
    }
    found = through_a_file(nest)
    assert found == nest
    assert [type(number) for number in found["numbers"]] == [int, float, float, int]
    assert np.isnan(through_a_file(float("nan")))


@pytest.mark.parametrize(
    "dtype", ["bool", "uint8", "int32", "int64", "uint64", "float16", "float32", "float64"]
)
@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 0, 3), (2, 3, 4)])
def test_arrays_keep_their_type_shape_and_bits(dtype, shape):
    array = np.random.default_rng(0).integers(0, 2, shape).astype(dtype)
    found = through_a_file(array)
    assert (found.dtype, found.shape) == (array.dtype, array.shape)
    assert found.tobytes() == array.tobytes()


@pytest.mark.parametrize("dtype", ["bfloat16", "float8_e4m3fn"])
@pytest.mark.parametrize("shape", [(), (2, 3)])
def test_types_that_numpy_does_not_know(dtype, shape):
    # Not by its name, which TensorFlow gives to a type of its own where it was imported.
    array = jnp.full(shape, 1.5, getattr(jnp, dtype))
    found = through_a_file(array)
    assert found.dtype == array.dtype
    assert found.shape == shape
    np.testing.assert_array_equal(found, np.asarray(array))


@pytest.mark.parametrize("impl", ["threefry2x32", "rbg"])
def test_typed_keys_go_on_with_the_same_numbers(impl):
    keys = jax.random.split(jax.random.key(3, impl=impl), 2)
    found = through_a_file({"keys": keys})["keys"]
    assert found.dtype == keys.dtype
    np.testing.assert_array_equal(
        jax.random.uniform(found[1], (4,)), jax.random.uniform(keys[1], (4,))
    )


def test_arrays_of_a_fortran_layout_and_views():
    array = np.arange(24.0).reshape(2, 3, 4)
    for view in (array.T, array[:, ::2], np.asfortranarray(array)):
        np.testing.assert_array_equal(through_a_file(view), view)


def test_an_optimizer_state_is_rebuilt_through_a_like():
    optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.adam(optax.constant_schedule(1)))
    params = {"w": jnp.arange(6.0).reshape(2, 3), "b": jnp.zeros(3, jnp.bfloat16)}
    state = optimizer.init(params)
    _, state = optimizer.update(params, state, params)
    found = through_a_file((params, state), like=(params, optimizer.init(params)))
    assert jax.tree.structure(found) == jax.tree.structure((params, state))
    for ours, theirs in zip(jax.tree.leaves(found), jax.tree.leaves((params, state)), strict=True):
        np.testing.assert_array_equal(ours, np.asarray(theirs))


@pytest.mark.parametrize(
    ("nest", "like", "message"),
    [
        ({"a": 1, "b": 2}, {"a": 1}, r"the root: the file has a dict of a, b, not a dict of a\."),
        ({"a": [1]}, {"a": [1, 2]}, r"\.a: the file has a list of 1, not a list of 2\."),
        ({"a": Pair(1, 2)}, None, r"\.a|the file has a Pair, not nothing"),
        ({"a": Pair(1, 2)}, {"a": (1, 2)}, r"\.a: the file has a Pair, not a tuple of 2\."),
        ({"a": (1, 2)}, {"a": Pair(1, 2)}, r"\.a: the file has a tuple of 2, not a Pair\."),
        (Pair(1, (2,)), Pair(1, ()), r"\.right: the file has a tuple of 1, not a tuple of 0\."),
    ],
)
def test_another_structure_is_named(nest, like, message):
    with pytest.raises(npz.NestError, match=message):
        through_a_file(nest, like)


@pytest.mark.parametrize("value", [object(), {1: 2}, {"a": np.array([object()])}, {"a": {3}}])
def test_what_cannot_be_stored_is_refused(value):
    with pytest.raises(npz.NestError, match=r"must be text|cannot store"):
        npz.write(io.BytesIO(), value)


def test_a_damaged_file_is_no_nest():
    file = io.BytesIO()
    npz.write(file, {"a": np.arange(1000)})
    whole = file.getvalue()
    for damaged in (b"", whole[: len(whole) // 2], b"x" * 100, whole[:200] + b"?" + whole[201:]):
        with pytest.raises(npz.NestError, match="damaged"):
            npz.read(io.BytesIO(damaged))
