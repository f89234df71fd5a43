"""Layers as functions over dicts of arrays.

B: batch, T: time, D: features, H: height, W: width, C: channels. Biases start small but not at
zero, so that a partitioned step that loses one is found out.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

Params = dict[str, Any]


def linear_init(
    key: jax.Array, n_in: int, n_out: int, bias: bool = True, dtype: Any = jnp.float32
) -> Params:
    """w [n_in, n_out] and, with a bias, b [n_out]."""
    weight_key, bias_key = jax.random.split(key)
    w = jax.random.normal(weight_key, (n_in, n_out), dtype) * dtype_scalar(
        1 / math.sqrt(n_in), dtype
    )
    if not bias:
        return {"w": w}
    return {"w": w, "b": jax.random.normal(bias_key, (n_out,), dtype) * dtype_scalar(0.01, dtype)}


def dtype_scalar(value: float, dtype: Any) -> jax.Array:
    return jnp.asarray(value, dtype)


def linear(params: Params, x: jax.Array) -> jax.Array:
    """x [..., n_in] -> [..., n_out], computed in the dtype of x."""
    y = x @ params["w"].astype(x.dtype)
    return y + params["b"].astype(x.dtype) if "b" in params else y


def mlp_init(key: jax.Array, sizes: Sequence[int]) -> Params:
    """Linear layers "linear_0", "linear_1", ... between consecutive sizes."""
    keys = jax.random.split(key, len(sizes) - 1)
    return {
        f"linear_{i}": linear_init(keys[i], sizes[i], sizes[i + 1]) for i in range(len(sizes) - 1)
    }


def mlp(
    params: Params, x: jax.Array, activation: Callable[[jax.Array], jax.Array] = jax.nn.relu
) -> jax.Array:
    """The linear layers in turn, with the activation between them."""
    for i in range(len(params)):
        if i:
            x = activation(x)
        x = linear(params[f"linear_{i}"], x)
    return x


def layer_norm_init(size: int, dtype: Any = jnp.float32) -> Params:
    return {"scale": jnp.ones((size,), dtype), "offset": jnp.zeros((size,), dtype)}


def widened(x: jax.Array) -> jax.Array:
    """x in float32, or as it is where it is wider."""
    return x.astype(jnp.promote_types(x.dtype, jnp.float32))


def layer_norm(params: Params, x: jax.Array, eps: float = 1e-5) -> jax.Array:
    """Normalises the last dimension in at least float32; the result has the dtype of x."""
    wide = widened(x)
    mean = wide.mean(-1, keepdims=True)
    variance = jnp.square(wide - mean).mean(-1, keepdims=True)
    normed = (wide - mean) * lax.rsqrt(variance + eps)
    return (normed * params["scale"] + params["offset"]).astype(x.dtype)


def dropout(key: jax.Array, x: jax.Array, rate: float) -> jax.Array:
    """Zeroes a fraction of x and scales the rest; consumes the key."""
    keep = jax.random.bernoulli(key, 1 - rate, x.shape)
    return jnp.where(keep, x / (1 - rate), jnp.zeros_like(x))


def conv_init(key: jax.Array, n_in: int, n_out: int, size: int = 3, groups: int = 1) -> Params:
    """w [size, size, n_in // groups, n_out] and b [n_out]."""
    fan_in = size * size * n_in // groups
    w = jax.random.normal(key, (size, size, n_in // groups, n_out)) / math.sqrt(fan_in)
    return {"w": w, "b": 0.01 * jnp.ones((n_out,))}


def conv(params: Params, x: jax.Array, stride: int = 1, groups: int = 1) -> jax.Array:
    """x [B, H, W, C_in] -> [B, H / stride, W / stride, C_out], zero padded."""
    y = lax.conv_general_dilated(
        x,
        params["w"],
        (stride, stride),
        "SAME",
        dimension_numbers=("NHWC", "HWIO", "NHWC"),
        feature_group_count=groups,
    )
    return y + params["b"]


def conv_transpose(params: Params, x: jax.Array, stride: int = 2) -> jax.Array:
    """x [B, H, W, C_in] -> [B, H * stride, W * stride, C_out]."""
    y = lax.conv_transpose(
        x, params["w"], (stride, stride), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
    )
    return y + params["b"]


def max_pool(x: jax.Array, window: int = 2) -> jax.Array:
    """x [B, H, W, C] -> [B, H / window, W / window, C]."""
    shape = (1, window, window, 1)
    return lax.reduce_window(x, -jnp.inf, lax.max, shape, shape, "VALID")


def avg_pool(x: jax.Array, window: int = 2) -> jax.Array:
    """x [B, H, W, C] -> [B, H / window, W / window, C]."""
    shape = (1, window, window, 1)
    return lax.reduce_window(x, 0.0, lax.add, shape, shape, "VALID") / (window * window)


def lstm_init(key: jax.Array, n_in: int, size: int) -> Params:
    keys = jax.random.split(key)
    return {
        "input": linear_init(keys[0], n_in, 4 * size),
        "hidden": linear_init(keys[1], size, 4 * size, bias=False),
    }


def lstm_start(batch: int, size: int) -> tuple[jax.Array, jax.Array]:
    """(hidden, cell), each [batch, size] of zeros."""
    return jnp.zeros((batch, size)), jnp.zeros((batch, size))


def lstm(
    params: Params, state: tuple[jax.Array, jax.Array], x: jax.Array
) -> tuple[tuple[jax.Array, jax.Array], jax.Array]:
    """One step: x [B, n_in] -> (state, output [B, size])."""
    hidden, cell = state
    gates = linear(params["input"], x) + linear(params["hidden"], hidden)
    i, f, g, o = jnp.split(gates, 4, axis=-1)
    cell = jax.nn.sigmoid(f + 1.0) * cell + jax.nn.sigmoid(i) * jnp.tanh(g)
    hidden = jax.nn.sigmoid(o) * jnp.tanh(cell)
    return (hidden, cell), hidden


def gru_init(key: jax.Array, n_in: int, size: int) -> Params:
    keys = jax.random.split(key)
    return {
        "input": linear_init(keys[0], n_in, 3 * size),
        "hidden": linear_init(keys[1], size, 3 * size, bias=False),
    }


def gru(params: Params, hidden: jax.Array, x: jax.Array) -> tuple[jax.Array, jax.Array]:
    """One step: x [B, n_in], hidden [B, size] -> (hidden, output), both [B, size]."""
    xr, xz, xa = jnp.split(linear(params["input"], x), 3, axis=-1)
    hr, hz, ha = jnp.split(linear(params["hidden"], hidden), 3, axis=-1)
    reset, update = jax.nn.sigmoid(xr + hr), jax.nn.sigmoid(xz + hz)
    hidden = (1 - update) * jnp.tanh(xa + reset * ha) + update * hidden
    return hidden, hidden


def unroll(
    cell: Callable[[Any, jax.Array], tuple[Any, jax.Array]], start: Any, xs: jax.Array
) -> tuple[Any, jax.Array]:
    """Runs a cell over time: xs [B, T, D] -> (last state, outputs [B, T, size])."""
    last, outputs = lax.scan(cell, start, jnp.swapaxes(xs, 0, 1))
    return last, jnp.swapaxes(outputs, 0, 1)
