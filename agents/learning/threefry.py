"""Random bits with the rounds of their generator laid out, for XLA's CPU compiler.

Jax computes the rounds of its default generator, Threefry, in a loop on CPU, so that they compile
quickly. Each turn of the loop is a dozen small operations: of a choice of actions for eight
environments the loop was half of the time. Laid out, 256 x 6 normal numbers take 14 us instead of
28, and PPO's choice 25 us instead of 28 (jax 0.6.2). With jax 0.12 it came to nothing, and
permutations took longer.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.extend.core import primitives
from jax.extend.random import threefry_prng_impl

Compute = Callable[..., Any]

_KEY = jax.eval_shape(lambda: jax.random.key(0, impl="threefry2x32")).dtype
_ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))


def forms(rewritten: Callable[[Compute], Compute]) -> dict[Any, Callable[..., Compute | None]]:
    """By primitive, `(params, *operands) -> what computes it`, or None: as it is.

    Args:
      rewritten: makes of a function one in these forms; what a typed key's primitive does is jax's
        own, down to the rounds.
    """
    jax_s = threefry_prng_impl

    def bits(params: dict[str, Any], words: jax.Array) -> jax.Array:
        return jax_s.random_bits(words, params["bit_width"], params["shape"])

    def fold_in(params: dict[str, Any], words: jax.Array, data: jax.Array) -> jax.Array:
        return jax_s.fold_in(words, data)

    def split(params: dict[str, Any], words: jax.Array) -> jax.Array:
        return jax_s.split(words, params["shape"])

    def of_keys(draw: Compute, gives_keys: bool) -> Callable[..., Compute | None]:
        def form(params: dict[str, Any], keys: Any, *others: Any) -> Compute | None:
            if keys.dtype != _KEY or any(other.shape != keys.shape for other in others):
                return None

            def compute(keys: jax.Array, *others: jax.Array) -> jax.Array:
                of_each = functools.partial(draw, params)
                for _ in range(keys.ndim):
                    of_each = jax.vmap(of_each)
                words = of_each(jax.random.key_data(keys), *others)
                return jax.random.wrap_key_data(words, impl=jax_s.name) if gives_keys else words

            return rewritten(compute)

        return form

    return {
        primitives.random_bits_p: of_keys(bits, gives_keys=False),
        primitives.random_fold_in_p: of_keys(fold_in, gives_keys=True),
        primitives.random_split_p: of_keys(split, gives_keys=True),
        primitives.threefry2x32_p: lambda params, *operands: rounds,
    }


def rounds(
    key_0: jax.Array, key_1: jax.Array, x_0: jax.Array, x_1: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """The twenty rounds of Threefry-2x32, of uint32 numbers of shapes that broadcast.

    Salmon et al. (2011), https://doi.org/10.1145/2063384.2063405, section 3.3.
    """
    keys = (key_0, key_1, key_0 ^ key_1 ^ jnp.uint32(0x1BD11BDA))
    x_0, x_1 = x_0 + keys[0], x_1 + keys[1]
    for group in range(5):
        for bits in _ROTATIONS[group % 2]:
            x_0 = x_0 + x_1
            x_1 = x_0 ^ ((x_1 << bits) | (x_1 >> (32 - bits)))
        x_0 = x_0 + keys[(group + 1) % 3]
        x_1 = x_1 + keys[(group + 2) % 3] + jnp.uint32(group + 1)
        # In one piece they took a newer XLA minutes to compile.
        x_0, x_1 = lax.optimization_barrier((x_0, x_1))
    return x_0, x_1
