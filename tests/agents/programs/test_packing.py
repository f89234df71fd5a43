"""What is packed comes back as it was."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from troupe.agents.programs.packing import Packing


@pytest.fixture
def nest():
    return {
        "key": jax.random.split(jax.random.key(3), 2),
        "float": jnp.asarray([[1.5, -0.0, jnp.inf]]),
        "half": jnp.asarray([1.5, -2.0], jnp.bfloat16),
        "int": jnp.asarray([-1, 2**31 - 1], jnp.int32),
        "byte": jnp.asarray([0, 255], jnp.uint8),
        "short": jnp.asarray([-5], jnp.int16),
        "flag": jnp.asarray([True, False]),
        "scalar": jnp.asarray(7, jnp.uint32),
        "empty": jnp.zeros((0, 3)),
    }


def test_round_trip_on_the_device(nest):
    packing = Packing(jax.eval_shape(lambda: nest))
    words = jax.jit(packing.pack)(nest)
    assert words.shape == (packing.size,)
    back = jax.jit(packing.unpack)(words)
    assert jax.tree.structure(back) == jax.tree.structure(nest)
    for a, b in zip(jax.tree.leaves(nest), jax.tree.leaves(back), strict=True):
        assert a.dtype == b.dtype
        assert a.shape == b.shape
        assert bool((a == b).all())
    assert np.signbit(back["float"][0, 1])


def test_round_trip_to_the_host(nest):
    packing = Packing(nest)
    back = packing.unpack_host(np.asarray(packing.pack(nest)))
    np.testing.assert_array_equal(back.pop("key"), jax.random.key_data(nest.pop("key")))
    for name, value in nest.items():
        assert back[name].dtype == value.dtype, name
        np.testing.assert_array_equal(back[name], value)


def test_a_nest_of_nothing():
    packing = Packing(())
    assert packing.size == 0
    assert packing.pack(()).shape == (0,)
    assert packing.unpack_host(np.zeros(0, np.uint32)) == ()
