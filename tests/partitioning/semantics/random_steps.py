"""What a random program may do next: families of steps, one from each family of rules.

A family takes the draw, the shapes known so far and the first operand, and gives a step and its
operands, or None where none fits. Arrays are small, with dimensions that divide by the axes and
ones that do not.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from hypothesis import strategies as st
from jax import lax

from . import random_foreign as foreign
from . import random_nested as nested

SIZES = (4, 8, 2, 6, 3, 1)

Draw = Callable[[st.SearchStrategy[Any]], Any]
Step = tuple[Callable[..., Any], tuple[int, ...]]


def _step(fn: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *args, ints, key: fn(*args)


def _unary(draw: Draw, known: list[Any], i: int) -> Any:
    fn = draw(
        st.sampled_from(
            [jnp.tanh, jnp.sin, jnp.negative, jax.nn.relu, jax.nn.gelu, jnp.square, jax.nn.sigmoid]
        )
    )
    return _step(lambda x: fn(x) * 0.5), (i,)


def _dtype(draw: Draw, known: list[Any], i: int) -> Any:
    dtype = draw(st.sampled_from([jnp.float16, jnp.float32]))
    return _step(lambda x: jnp.tanh(x.astype(dtype).astype(jnp.float32))), (i,)


def _binary(draw: Draw, known: list[Any], i: int) -> Any:
    fits = [j for j, s in enumerate(known) if s == known[i] or _broadcasts(s, known[i])]
    fn = draw(
        st.sampled_from(
            [jnp.add, jnp.multiply, jnp.subtract, jnp.maximum, lambda x, y: jnp.where(x > 0, x, y)]
        )
    )
    return _step(lambda x, y: fn(x, y)), (i, draw(st.sampled_from(fits)))


def _broadcasts(small: tuple[int, ...], big: tuple[int, ...]) -> bool:
    return len(small) <= len(big) and all(
        a in (1, b) for a, b in zip(small[::-1], big[-1 : -1 - len(small) : -1], strict=True)
    )


def _dot(draw: Draw, known: list[Any], i: int) -> Any:
    pairs = [
        (j, d, e)
        for j, s in enumerate(known)
        for d in range(len(known[i]))
        for e in range(len(s))
        if s[e] == known[i][d] and len(s) + len(known[i]) <= 5
    ]
    if not pairs:
        return None
    j, d, e = draw(st.sampled_from(pairs))
    batch: tuple[tuple[int, ...], tuple[int, ...]] = ((), ())
    shared = [
        (x, y)
        for x in range(len(known[i]))
        for y in range(len(known[j]))
        if x != d and y != e and known[i][x] == known[j][y]
    ]
    if shared and draw(st.booleans()):
        x, y = draw(st.sampled_from(shared))
        batch = ((x,), (y,))
    return _step(lambda x, y: lax.dot_general(x, y, (((d,), (e,)), batch)) * 0.3), (i, j)


def _reduce(draw: Draw, known: list[Any], i: int) -> Any:
    if not known[i]:
        return None
    axis = draw(st.integers(0, len(known[i]) - 1))
    fn = draw(st.sampled_from([jnp.mean, jnp.max, jnp.min, jnp.sum, jax.nn.logsumexp]))
    keep = draw(st.booleans())
    return _step(lambda x: fn(x, axis=axis, keepdims=keep)), (i,)


def _softmax(draw: Draw, known: list[Any], i: int) -> Any:
    if not known[i]:
        return None
    axis = draw(st.integers(0, len(known[i]) - 1))
    return _step(lambda x: jax.nn.softmax(x, axis=axis)), (i,)


def _transpose(draw: Draw, known: list[Any], i: int) -> Any:
    order = draw(st.permutations(range(len(known[i]))))
    return _step(lambda x: jnp.transpose(x, order)), (i,)


def _reshape(draw: Draw, known: list[Any], i: int) -> Any:
    shape = list(known[i])
    options = [
        (*shape[:k], shape[k] * shape[k + 1], *shape[k + 2 :]) for k in range(len(shape) - 1)
    ]
    for k, n in enumerate(shape):
        options += [(*shape[:k], p, n // p, *shape[k + 1 :]) for p in (2, 3, 4) if n % p == 0 and n]
    options.append((*shape, 1))
    target = draw(st.sampled_from(options))
    return _step(lambda x: x.reshape(target)), (i,)


def _broadcast(draw: Draw, known: list[Any], i: int) -> Any:
    size = draw(st.sampled_from(SIZES))
    return _step(lambda x: jnp.broadcast_to(x, (size, *x.shape)) * 0.7), (i,)


def _concatenate(draw: Draw, known: list[Any], i: int) -> Any:
    if not known[i]:
        return None
    axis = draw(st.integers(0, len(known[i]) - 1))
    fits = [
        j
        for j, s in enumerate(known)
        if len(s) == len(known[i])
        and all(a == b for d, (a, b) in enumerate(zip(s, known[i], strict=True)) if d != axis)
    ]
    return _step(lambda x, y: jnp.concatenate([x, y], axis)), (i, draw(st.sampled_from(fits)))


def _cut(draw: Draw, known: list[Any], i: int) -> Any:
    if not known[i]:
        return None
    axis = draw(st.integers(0, len(known[i]) - 1))
    how = draw(st.sampled_from(["slice", "pad", "rev", "roll", "dynamic", "update", "split"]))
    half = max(known[i][axis] // 2, 1)
    rank = len(known[i])
    starts = [0] * rank

    def cut(x: jax.Array, ints: jax.Array, key: jax.Array) -> jax.Array:
        if how == "slice":
            return lax.slice_in_dim(x, 0, half, axis=axis)
        if how == "pad":
            return lax.pad(
                x, jnp.float32(0.5), [(1, 1, 0) if d == axis else (0, 0, 0) for d in range(rank)]
            )
        if how == "rev":
            return lax.rev(x, (axis,))
        if how == "roll":
            return jnp.roll(x, 1, axis)
        if how == "split":
            return jnp.split(x, [half], axis)[0]
        at = [ints[0] % x.shape[axis] if d == axis else 0 for d in range(rank)]
        part = [half if d == axis else n for d, n in enumerate(x.shape)]
        if how == "dynamic":
            return lax.dynamic_slice(x, at, part)
        return lax.dynamic_update_slice(x, lax.slice(x, starts, part) * 2, at)

    return cut, (i,)


def _gather(draw: Draw, known: list[Any], i: int) -> Any:
    if not known[i]:
        return None
    axis = draw(st.integers(0, len(known[i]) - 1))
    mode = draw(st.sampled_from(["clip", "fill", "wrap"]))

    def take(x: jax.Array, ints: jax.Array, key: jax.Array) -> jax.Array:
        return jnp.nan_to_num(jnp.take(x, ints, axis=axis, mode=mode), nan=0.25)

    return take, (i,)


def _take_along(draw: Draw, known: list[Any], i: int) -> Any:
    if not known[i]:
        return None
    axis = draw(st.integers(0, len(known[i]) - 1))

    def take(x: jax.Array, ints: jax.Array, key: jax.Array) -> jax.Array:
        index = (lax.broadcasted_iota(jnp.int32, x.shape, axis) + ints[0]) % x.shape[axis]
        return jnp.take_along_axis(x, index, axis=axis)

    return take, (i,)


def _rows(draw: Draw, known: list[Any], i: int) -> Any:
    if len(known[i]) < 2:
        return None

    def pick(x: jax.Array, ints: jax.Array, key: jax.Array) -> jax.Array:
        columns = (jnp.arange(x.shape[0]) + ints[0]) % x.shape[1]
        return x[jnp.arange(x.shape[0]), columns]

    return pick, (i,)


def _scatter(draw: Draw, known: list[Any], i: int) -> Any:
    if not known[i]:
        return None
    how = draw(st.sampled_from(["segment", "add", "set", "max", "drop"]))

    def scatter(x: jax.Array, ints: jax.Array, key: jax.Array) -> jax.Array:
        index = (jnp.arange(x.shape[0]) * 3 + ints[0]) % 8
        if how == "segment":
            return jax.ops.segment_sum(x, index, 8) * 0.5
        base = jnp.full((8, *x.shape[1:]), 0.1)
        if how == "set":  # distinct rows: the order of duplicates is not defined
            return base.at[(jnp.arange(x.shape[0]) + ints[0]) % max(8, x.shape[0])].set(x)
        if how == "max":
            return base.at[index].max(x)
        if how == "drop":
            return base.at[index + 3].add(x, mode="drop")
        return base.at[index].add(x)

    return scatter, (i,)


def _one_hot(draw: Draw, known: list[Any], i: int) -> Any:
    def mix(x: jax.Array, ints: jax.Array, key: jax.Array) -> jax.Array:
        return jnp.tensordot(jax.nn.one_hot(ints, 4), jnp.ones((4, 3)), 1) + jnp.mean(x)

    return mix, (i,)


def _ordered(draw: Draw, known: list[Any], i: int) -> Any:
    if not known[i]:
        return None
    axis = draw(st.integers(0, len(known[i]) - 1))
    fn = draw(
        st.sampled_from(
            [
                lambda x: jnp.sort(x, axis=axis),
                lambda x: jnp.argmax(x, axis=axis).astype(jnp.float32) * 0.1,
                lambda x: jnp.cumsum(x, axis=axis) * 0.3,
                lambda x: lax.cummax(x, axis=axis),
                lambda x: lax.top_k(x, max(x.shape[-1] // 2, 1))[0],
                lambda x: jnp.argsort(x, axis=axis).astype(jnp.float32) * 0.1,
            ]
        )
    )
    return _step(fn), (i,)


def _random(draw: Draw, known: list[Any], i: int) -> Any:
    typed, how = (
        draw(st.booleans()),
        draw(st.sampled_from(["normal", "bernoulli", "split", "permutation"])),
    )

    def noise(x: jax.Array, ints: jax.Array, key: jax.Array) -> jax.Array:
        key = jax.random.wrap_key_data(key) if typed else key
        if how == "normal":
            return x + jax.random.normal(key, x.shape)
        if how == "bernoulli":
            return jnp.where(jax.random.bernoulli(key, 0.5, x.shape), x, 0.0)
        if how == "permutation":
            return x * 0.5 + jax.random.permutation(key, 8)[0]
        keys = jax.random.split(key, max(x.shape[0] if x.ndim else 1, 1))
        return x + jax.vmap(lambda k: jax.random.normal(k, ()))(keys).reshape(
            (-1,) + (1,) * max(x.ndim - 1, 0)
        )

    return noise, (i,)


def _convolution(draw: Draw, known: list[Any], i: int) -> Any:
    if len(known[i]) != 3 or 1 in known[i]:
        return None
    _batch, _length, channels = known[i]
    groups = draw(st.sampled_from([g for g in (1, 2, 4) if channels % g == 0]))
    pooled = draw(st.booleans())

    def convolve(x: jax.Array, ints: jax.Array, key: jax.Array) -> jax.Array:
        weights = jnp.sin(jnp.arange(3 * (channels // groups) * 8.0)).reshape(
            3, channels // groups, 8
        )
        y = lax.conv_general_dilated(
            x,
            weights,
            (1,),
            "SAME",
            dimension_numbers=("NWC", "WIO", "NWC"),
            feature_group_count=groups,
        )
        if pooled:
            y = lax.reduce_window(y, -jnp.inf, lax.max, (1, 2, 1), (1, 1, 1), "SAME")
        return y * 0.3

    return convolve, (i,)


def _solve(draw: Draw, known: list[Any], i: int) -> Any:
    if len(known[i]) < 2:
        return None

    def solve(x: jax.Array, ints: jax.Array, key: jax.Array) -> jax.Array:
        square = jnp.einsum("...ij,...kj->...ik", x, x) * 0.1 + jnp.eye(x.shape[-2])
        return jnp.linalg.cholesky(square)

    return solve, (i,)


def _scan(draw: Draw, known: list[Any], i: int) -> Any:
    if len(known[i]) < 2:
        return None
    reverse, stacked = draw(st.booleans()), draw(st.booleans())

    def scan(x: jax.Array, ints: jax.Array, key: jax.Array) -> jax.Array:
        weights = jnp.mean(x, axis=0)

        def body(carry: Any, row: Any) -> Any:
            carry = jnp.tanh(carry + row * weights)
            return carry, carry * 2

        last, rows = lax.scan(body, jnp.zeros(x.shape[1:]), x, reverse=reverse)
        return rows if stacked else last

    return scan, (i,)


def _loop(draw: Draw, known: list[Any], i: int) -> Any:
    if not known[i]:
        return None
    product = draw(st.booleans())

    def loop(x: jax.Array, ints: jax.Array, key: jax.Array) -> jax.Array:
        def body(k: Any, carry: Any) -> Any:
            total, y = carry
            y = jnp.tanh(y + (jnp.sum(y, axis=0, keepdims=True) * 0.1 if product else 0.3))
            return total + jnp.sum(y), y

        # A static bound, so that the loop differentiates.
        total, y = lax.fori_loop(0, 3, body, (jnp.zeros((), x.dtype), x))
        return y + total * 0.01

    return loop, (i,)


def _while(draw: Draw, known: list[Any], i: int) -> Any:
    if not known[i]:
        return None

    def loop(x: jax.Array, ints: jax.Array, key: jax.Array) -> jax.Array:
        x = lax.stop_gradient(x)
        count, y = lax.while_loop(
            lambda carry: carry[0] < 2 + ints[0] % 2,
            lambda carry: (carry[0] + 1, carry[1] * 0.5 + x),
            (0, x),
        )
        return y + count

    return loop, (i,)


def _cond(draw: Draw, known: list[Any], i: int) -> Any:
    def branch(x: jax.Array, ints: jax.Array, key: jax.Array) -> jax.Array:
        return lax.switch(ints[0] % 3, [jnp.sin, lambda y: y * 2, lambda y: y - jnp.mean(y)], x)

    return branch, (i,)


def _checkpoint(draw: Draw, known: list[Any], i: int) -> Any:
    return _step(jax.checkpoint(lambda x: jnp.sin(jnp.cos(x) * jnp.mean(x)))), (i,)


def _custom(draw: Draw, known: list[Any], i: int) -> Any:
    @jax.custom_vjp
    def clipped(x: jax.Array) -> jax.Array:
        return jnp.tanh(x)

    clipped.defvjp(lambda x: (jnp.tanh(x), x), lambda x, g: (jnp.clip(g, -0.5, 0.5) * jnp.cos(x),))
    return _step(clipped), (i,)


def _empty(draw: Draw, known: list[Any], i: int) -> Any:
    if not known[i]:
        return None
    return _step(lambda x: jnp.sum(x[:0], axis=0) + jnp.max(x, axis=0)), (i,)


DISCRETE = frozenset({_ordered, _random, *nested.DISCRETE})
FAMILIES = [
    _unary,
    _dtype,
    _binary,
    _binary,
    _dot,
    _dot,
    _dot,
    _reduce,
    _reduce,
    _softmax,
    _transpose,
    _reshape,
    _reshape,
    _broadcast,
    _concatenate,
    _cut,
    _gather,
    _take_along,
    _rows,
    _scatter,
    _one_hot,
    _ordered,
    _random,
    _convolution,
    _solve,
    _scan,
    _loop,
    _while,
    _cond,
    _checkpoint,
    _custom,
    _empty,
    *foreign.FAMILIES,
    *nested.FAMILIES,
]
