"""What is packed comes back as it was, whatever stays apart."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from troupe.agents.programs.packing import Packing

OPTIONS = [{}, {"by_rows": True}, {"small": 16}, {"small": -1, "by_rows": True}]


@pytest.fixture
def nest():
    return {
        "key": jax.random.split(jax.random.key(3), 2),
        "float": jnp.asarray([[1.5, -0.0, jnp.inf], [jnp.nan, 0.0, -2.5]]),
        "half": jnp.asarray([1.5, -2.0], jnp.bfloat16),
        "int": jnp.asarray([-1, 2**31 - 1], jnp.int32),
        "byte": jnp.asarray([[0, 255, 1, 2, 3], [5, 6, 7, 8, 9]], jnp.uint8),
        "short": jnp.asarray([-5, 7], jnp.int16),
        "flag": jnp.asarray([[[True]], [[False]]]),
        "word": jnp.asarray([7, 2**32 - 1], jnp.uint32),
        "empty": jnp.zeros((2, 0, 3)),
    }


@pytest.mark.parametrize("options", OPTIONS)
def test_round_trip_on_the_device(nest, options):
    packing = Packing(jax.eval_shape(lambda: nest), **options)
    parts = jax.jit(packing.pack)(nest)
    if packing.size:
        assert parts[0].shape == ((2,) if options.get("by_rows") else ()) + (packing.size,)
        assert parts[0].dtype == np.uint32
    back = jax.jit(packing.unpack)(parts)
    assert jax.tree.structure(back) == jax.tree.structure(nest)
    for a, b in zip(jax.tree.leaves(nest), jax.tree.leaves(back), strict=True):
        assert a.dtype == b.dtype
        assert a.shape == b.shape
        if not jax.dtypes.issubdtype(a.dtype, jax.dtypes.prng_key):
            assert np.asarray(a).tobytes() == np.asarray(b).tobytes()
    assert bool((back["key"] == nest["key"]).all())


@pytest.mark.parametrize("options", OPTIONS)
def test_round_trip_to_the_host(nest, options):
    packing = Packing(nest, **options)
    back = packing.unpack_host([np.asarray(part) for part in packing.pack(nest)])
    np.testing.assert_array_equal(back.pop("key"), jax.random.key_data(nest.pop("key")))
    for name, value in nest.items():
        assert back[name].dtype == value.dtype, name
        np.testing.assert_array_equal(back[name], value)


def test_words_take_no_more_bytes_than_the_numbers():
    numbers = {"half": jnp.zeros((4, 6), jnp.bfloat16), "flag": jnp.zeros(8, bool)}
    assert 4 * Packing(numbers).size == 4 * 6 * 2 + 8


def test_rows_can_be_picked_from_what_is_packed(nest):
    packing = Packing(nest, by_rows=True)
    picked = packing.unpack([part[jnp.array([1, 1, 0])] for part in packing.pack(nest)])
    np.testing.assert_array_equal(picked["int"], nest["int"][jnp.array([1, 1, 0])])
    assert picked["empty"].shape == (3, 0, 3)


def test_a_nest_of_nothing():
    packing = Packing(())
    assert packing.pack(()) == []
    assert packing.unpack([]) == packing.unpack_host([]) == ()
