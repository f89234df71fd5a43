"""Random bits with the rounds of their generator laid out."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from troupe.agents.learning import kernels, threefry

KNOWN = [
    ((0x00000000, 0x00000000), (0x00000000, 0x00000000), (0x6B200159, 0x99BA4EFE)),
    ((0xFFFFFFFF, 0xFFFFFFFF), (0xFFFFFFFF, 0xFFFFFFFF), (0x1CB996FC, 0xBB002BE7)),
    ((0x13198A2E, 0x03707344), (0x243F6A88, 0x85A308D3), (0xC4923A9C, 0x483DF7A0)),
]
"""Keys, counters and what comes of them: of Random123, which its authors published."""

DRAWS = {
    "normal": lambda key: jax.random.normal(key, (5, 3)),
    "bytes": lambda key: jax.random.bits(key, (7,), jnp.uint8),
    "permutation": lambda key: jax.random.permutation(key, 11),
    "splits": lambda key: jax.random.key_data(jax.random.split(key, (4, 2))),
    "fold_in": lambda key: jax.random.key_data(jax.random.fold_in(key, 3)),
    "by streams": lambda key: jax.vmap(
        lambda one, count: jax.random.categorical(jax.random.fold_in(one, count), jnp.zeros((4, 6)))
    )(jax.random.split(key, 8), jnp.arange(8)),
    "in a loop": lambda key: jax.lax.scan(
        lambda one, _: (jax.random.fold_in(one, 1), jax.random.uniform(one)), key, length=3
    )[1],
}


@pytest.mark.parametrize(("key", "counter", "expected"), KNOWN, ids=lambda words: f"{words[0]:08x}")
def test_the_rounds_are_those_of_their_authors(key, counter, expected):
    words = [jnp.uint32(word) for word in (*key, *counter)]
    assert tuple(int(word) for word in threefry.rounds(*words)) == expected


@pytest.mark.parametrize("impl", ["threefry2x32", "rbg"])
@pytest.mark.parametrize("draw", DRAWS.values(), ids=DRAWS)
def test_what_is_drawn_stays(draw, impl, monkeypatch):
    """Bit for bit; and of jax's threefry no rounds are left to jax."""
    laid_out = threefry.forms(kernels.for_cpu)
    monkeypatch.setitem(kernels._FORMS, True, {**kernels._FORMS[True], **laid_out})
    key = jax.random.key(3, impl=impl)
    found, expected = jax.jit(kernels.for_cpu(draw))(key), jax.jit(draw)(key)
    np.testing.assert_array_equal(found, expected)
    text = str(jax.make_jaxpr(kernels.for_cpu(draw))(key))
    left = [name for name in ("random_bits", "random_fold_in", "random_split") if name in text]
    assert bool(left) == (impl == "rbg")
    assert "threefry2x32 " not in text
