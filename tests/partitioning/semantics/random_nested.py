"""Maps within maps and loops within loops, guards against NaN, and arithmetic of other types.

Families as in `random_steps`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from hypothesis import strategies as st
from jax import lax

Draw = Callable[[st.SearchStrategy[Any]], Any]
Row = Callable[[jax.Array], jax.Array]


def _scanned(row: Row, reverse: bool = False, body: Any = lambda turn: turn) -> Row:
    def scan(x: jax.Array) -> jax.Array:
        def turn(carry: jax.Array, now: jax.Array) -> tuple[jax.Array, jax.Array]:
            made = row(now + 0.5 * carry)
            return jnp.tanh(made), made

        return lax.scan(body(turn), jnp.zeros_like(x[0]), x, reverse=reverse)[1]

    return scan


def _in_place(row: Row) -> Row:
    def loop(x: jax.Array) -> jax.Array:
        return lax.fori_loop(0, x.shape[0], lambda k, y: y.at[k].set(row(y[k] + y[0])), x)

    return loop


def _every_other(row: Row) -> Row:
    def each(n: jax.Array, x: jax.Array) -> jax.Array:
        return lax.switch(n % 3, [row, lambda y: y * 0.5, jnp.zeros_like], x)

    return lambda x: jax.vmap(each)(jnp.arange(x.shape[0]), x)


def _prefixes(row: Row) -> Row:
    return lambda x: jax.vmap(row)(lax.associative_scan(lambda a, b: 0.5 * a + 0.5 * b, x))


#: Each makes of a function of rows one of arrays of rows.
MAPS: dict[str, Callable[[Row], Row]] = {
    "vmap": jax.vmap,
    "vmap of columns": lambda row: jax.vmap(row, -1, -1),
    "map": lambda row: lambda x: lax.map(row, x),
    "map of batches": lambda row: lambda x: lax.map(row, x, batch_size=2),
    "scan": _scanned,
    "scan, backward": lambda row: _scanned(row, True),
    "scan, checkpointed": lambda row: _scanned(row, False, jax.checkpoint),
    "in place": _in_place,
    "every other": _every_other,
    "prefixes": _prefixes,
}


def nested(draw: Draw, known: list[Any], i: int) -> Any:
    rank = len(known[i])
    if not rank or 0 in known[i]:
        return None
    depth = draw(st.integers(1, rank))
    maps = [MAPS[draw(st.sampled_from(sorted(MAPS)))] for _ in range(depth)]
    how = draw(st.sampled_from(["tanh", "mean", "set", "sum", "noise", "gradient", "column"]))

    def apply(x: jax.Array, ints: jax.Array, key: jax.Array) -> jax.Array:
        def row(r: jax.Array) -> jax.Array:
            if how == "mean":
                return r - 0.5 * jnp.mean(r)
            if how == "set":
                return r.reshape(-1).at[ints[0] % r.size].set(0.5).reshape(r.shape)
            if how == "sum":
                return jnp.cumsum(r.reshape(-1)).reshape(r.shape) * 0.3
            if how == "noise":
                return r + jax.random.normal(key, r.shape)
            if how == "gradient":
                return jax.grad(lambda y: jnp.sum(jnp.sin(y) * jnp.mean(y)))(r)
            if how == "column":
                return r * x.reshape(-1)[:1].astype(r.dtype)[0]
            return jnp.tanh(r)

        for wrap in maps:
            row = wrap(row)
        return row(x)

    return apply, (i,)


def guarded(draw: Draw, known: list[Any], i: int) -> Any:
    how = draw(st.sampled_from(["skip", "nan_to_num", "nanmean", "where", "count", "clip", "fill"]))

    def guard(x: jax.Array, ints: jax.Array, key: jax.Array) -> jax.Array:
        if how == "skip":
            return lax.cond(jnp.isfinite(x).all(), lambda y: y * 0.5, jnp.zeros_like, x)
        if how == "nan_to_num":
            return jnp.nan_to_num(x, nan=0.5, posinf=2.0, neginf=-2.0)
        if how == "nanmean":
            return jnp.nanmean(x, axis=0) if x.ndim else x
        if how == "where":
            return jnp.where(jnp.isnan(x), 0.25, jnp.minimum(x, jnp.nanmax(x, initial=0.0)))
        if how == "count":
            return x + jnp.isnan(x).sum() + jnp.isposinf(x).any()
        if how == "clip":
            norm = jnp.sqrt(jnp.sum(jnp.square(x)))
            return x * jnp.where(norm < 1, 1.0, 1 / norm).astype(x.dtype)
        return jnp.full_like(x, jnp.nan).at[...].set(x)

    return guard, (i,)


def counted(draw: Draw, known: list[Any], i: int) -> Any:
    dtype = draw(st.sampled_from(["int8", "uint8", "int32", "uint32", "bool"]))
    how = draw(st.sampled_from(["sum", "bits", "histogram", "mean"]))

    def count(x: jax.Array, ints: jax.Array, key: jax.Array) -> jax.Array:
        signs = jnp.sign(jnp.nan_to_num(x)) + 1
        n = signs.astype(dtype)
        if how == "bits":
            n = (n << 3 ^ n) // 2 if dtype != "bool" else ~n & (signs > 1)
            return n.astype(x.dtype)
        if how == "histogram":
            return jnp.bincount(n.reshape(-1).astype(jnp.int32) % 4, length=4).astype(x.dtype)
        if not x.ndim:
            return n.astype(x.dtype)
        return (n.sum(0) if how == "sum" else n.mean(-1)).astype(x.dtype)

    return count, (i,)


#: They read what rounding must not decide.
DISCRETE = [counted]
FAMILIES = [*[nested] * 8, guarded, guarded, counted]
