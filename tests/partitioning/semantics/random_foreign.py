"""What other people's steps do that drew attention: loops of examples, batches that are split and
merged, rows that are picked, keys and callbacks. Families as in `random_steps`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from hypothesis import strategies as st
from jax import lax
from jax.experimental import io_callback

Draw = Callable[[st.SearchStrategy[Any]], Any]


def vmapped_loop(draw: Draw, known: list[Any], i: int) -> Any:
    if not known[i]:
        return None
    how = draw(st.sampled_from(["while", "bound", "nested", "poisson"]))

    def loop(x: jax.Array, ints: jax.Array, key: jax.Array) -> jax.Array:
        x = lax.stop_gradient(x)
        turns = (jnp.arange(x.shape[0]) + ints[0]) % 4

        def each(row: jax.Array, n: jax.Array) -> jax.Array:
            if how == "while":
                return lax.while_loop(
                    lambda c: c[0] < n, lambda c: (c[0] + 1, jnp.tanh(c[1] + c[0])), (0, row)
                )[1]
            if how == "bound":
                return lax.fori_loop(0, n, lambda k, c: c * 0.5 + jnp.sum(c) * 0.1, row)
            bound = n + jnp.arange(3) % 2
            inner = jax.vmap(lambda m: lax.fori_loop(0, m, lambda k, c: c * 0.5 + 1, row))
            return inner(bound).sum(0)

        if how == "poisson":
            keys = jax.random.split(jax.random.wrap_key_data(key), x.shape[0])
            drawn = jax.vmap(jax.random.poisson)(keys, turns * 1.5)
            return x + drawn.reshape(-1, *[1] * (x.ndim - 1)) * 0.1
        return jax.vmap(each)(x, turns)

    return loop, (i,)


def accumulate(draw: Draw, known: list[Any], i: int) -> Any:
    if not known[i] or known[i][0] % 2 or not known[i][0]:
        return None
    parts = draw(st.sampled_from([p for p in (2, 4) if known[i][0] % p == 0]))
    product = draw(st.booleans())

    def accumulate(x: jax.Array, ints: jax.Array, key: jax.Array) -> jax.Array:
        def turn(total: jax.Array, part: jax.Array) -> tuple[jax.Array, None]:
            gain = jnp.tensordot(part, part, ((0,), (0,))) if product else part.sum(0)
            return total + gain * 0.1, None

        pieces = x.reshape(parts, -1, *x.shape[1:])
        shape = (*x.shape[1:], *x.shape[1:]) if product else x.shape[1:]
        return lax.scan(turn, jnp.zeros(shape), pieces)[0]

    return accumulate, (i,)


def merged(draw: Draw, known: list[Any], i: int) -> Any:
    if len(known[i]) < 2:
        return None
    swapped = draw(st.booleans())

    def merge(x: jax.Array, ints: jax.Array, key: jax.Array) -> jax.Array:
        y = x.swapaxes(0, 1) if swapped else x
        rows = y.reshape(-1, *y.shape[2:])
        rows = jnp.tanh(rows - rows.mean(0))
        return rows.reshape(y.shape)

    return merge, (i,)


def picked(draw: Draw, known: list[Any], i: int) -> Any:
    if not known[i]:
        return None
    how = draw(st.sampled_from(["one", "column", "shuffled", "minibatches"]))

    def pick(x: jax.Array, ints: jax.Array, key: jax.Array) -> jax.Array:
        rows = jnp.arange(x.shape[0])
        if how in ("one", "column"):
            if x.ndim == 1:
                return x[(rows + ints[0]) % x.shape[0]]
            columns = (rows * 3 + ints[0]) % x.shape[1]
            return x[rows, columns] if how == "one" else jax.vmap(lambda r, c: r[c])(x, columns)
        order = jax.random.permutation(key, x.shape[0])
        if how == "shuffled" or x.shape[0] % 2:
            return x[order]
        parts = order.reshape(2, -1)
        start = jnp.zeros(x.shape[1:])
        return lax.scan(lambda c, at: (jnp.tanh(c + x[at].mean(0)), None), start, parts)[0]

    return pick, (i,)


def keys(draw: Draw, known: list[Any], i: int) -> Any:
    if not known[i]:
        return None
    typed, fold = draw(st.booleans()), draw(st.booleans())

    def noise(x: jax.Array, ints: jax.Array, key: jax.Array) -> jax.Array:
        key = jax.random.wrap_key_data(key) if typed else key
        keys = jax.random.split(key, x.shape[0])

        def each(key: jax.Array, row: jax.Array) -> jax.Array:
            key = jax.random.fold_in(key, ints[0]) if fold else key
            first, second = jax.random.split(key)
            kept = jax.random.bernoulli(first, 0.7, row.shape)
            return jnp.where(kept, row, jax.random.uniform(second, row.shape))

        return jax.vmap(each)(keys, x)

    return noise, (i,)


def dropout(draw: Draw, known: list[Any], i: int) -> Any:
    bits = draw(st.sampled_from(["bernoulli", "bits8", "truncated"]))

    def drop(x: jax.Array, ints: jax.Array, key: jax.Array) -> jax.Array:
        if bits == "bernoulli":
            return jnp.where(jax.random.bernoulli(key, 0.8, x.shape), x / 0.8, 0.0)
        if bits == "bits8":
            return x * (jax.random.bits(key, x.shape, "uint8") > 40)
        return x + jax.random.truncated_normal(key, -1.0, 1.0, x.shape)

    return drop, (i,)


#: What the callbacks of a program were called with, in order: those that are ordered, and others.
CALLS: list[float] = []
UNORDERED: list[float] = []


def callback(draw: Draw, known: list[Any], i: int) -> Any:
    how = draw(st.sampled_from(["pure", "io", "debug", "looped"]))

    def called(value: Any) -> Any:
        CALLS.append(float(np.sum(value)))
        return np.asarray(value) * np.float32(0.5)

    def call(x: jax.Array, ints: jax.Array, key: jax.Array) -> jax.Array:
        x = lax.stop_gradient(x)
        like = jax.ShapeDtypeStruct(x.shape, x.dtype)
        if how == "pure":
            return jax.pure_callback(lambda v: np.asarray(v) * np.float32(0.5), like, x)
        if how == "debug":
            # jax orders none of these on several devices.
            jax.debug.callback(lambda v: UNORDERED.append(float(np.sum(v))), x)
            return x
        if how == "io":
            return io_callback(called, like, x, ordered=True)

        def turn(carry: jax.Array, _: None) -> tuple[jax.Array, None]:
            return io_callback(called, like, carry, ordered=True), None

        return lax.scan(turn, x, None, length=2)[0]

    return call, (i,)


FAMILIES = [vmapped_loop, accumulate, merged, picked, keys, dropout, callback]
