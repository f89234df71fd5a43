"""The gated transformer as a recurrent core.

GTrXL (Parisotto et al., 2019, https://arxiv.org/abs/1910.06764): a transformer that looks back over
a memory of past activations, normalises before its layers and joins them by gates, which hold it
close to the identity at first. Positions are relative (Dai et al., 2019,
https://arxiv.org/abs/1901.02860, section 3.3).

Letters: B batch, T time, H features, L layers, M rows of memory, N heads, K = M + T keys.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import haiku as hk
import jax
import jax.numpy as jnp

from .recurrent import Core


class TransformerState(NamedTuple):
    """Memory of an episode."""

    rows: Any
    """[L, M, H] float32: what each layer was given at the last M rows, the newest last."""
    held: jax.Array
    """[] int32: how many of them are of this episode."""


def gated_transformer(
    size: int, *, num_layers: int, num_heads: int, memory_length: int, loop: bool = True
) -> Core:
    """A gated transformer whose rows see themselves and the M before them, of the same episode.

    So an unrolled window is its rows one by one, whatever its length. A layer has about 25 H^2
    parameters: products of attention and of an MLP of 4 H units, and the gates.

    Args:
      size: H, a multiple of `num_heads`.
      num_layers: L; what lies M L rows back is the most that can be told.
      num_heads: N.
      memory_length: M.
      loop: True: the layers are one loop, and every array of the parameters is [L, ...]. False:
        each layer has arrays of its own.
    """
    initial = TransformerState(
        jnp.zeros((num_layers, memory_length, size)), jnp.zeros((), jnp.int32)
    )
    make = functools.partial(_Transformer, num_layers, num_heads, size, loop, name="transformer")
    return Core(initial, lambda *args: make()(*args))


class _Parameters(hk.Module):
    """Parameters of a layer, or of several, which the first dimensions tell apart."""

    def __init__(self, num_heads: int, size: int, leading: tuple[int, ...], name: str):
        super().__init__(name)
        self._num_heads, self._size, self._leading = num_heads, size, leading

    def __call__(self, dtype: jnp.dtype) -> dict[str, jax.Array]:
        return _parameters(self._num_heads, self._size, self._leading, dtype)


def _parameters(
    num_heads: int, size: int, leading: tuple[int, ...], dtype: jnp.dtype
) -> dict[str, jax.Array]:
    """The parameters [*leading, ...] of layers, in the module that asks for them."""
    heads = num_heads, size // num_heads

    def make(name: str, *shape: int, init: Any = None) -> jax.Array:
        init = init or hk.initializers.TruncatedNormal(shape[-2] ** -0.5)
        return hk.get_parameter(name, (*leading, *shape), dtype, init=init)

    params = {name: make(name, size, size) for name in ("query", "key", "value")}
    params |= {name: make(name, size, size) for name in ("position", "output")}
    params |= {"up": make("up", size, 4 * size), "down": make("down", 4 * size, size)}
    biases = {"content": heads, "position": heads, "up": (4 * size,), "down": (size,)}
    for name, shape in biases.items():
        params[f"{name}_bias"] = make(f"{name}_bias", *shape, init=jnp.zeros)
    # Of two: before attention and before the MLP; behind attention and behind the MLP.
    params["norm_scale"] = make("norm_scale", 2, size, init=jnp.ones)
    params["norm_offset"] = make("norm_offset", 2, size, init=jnp.zeros)
    for name in ("gate_new", "gate_old"):
        params[name] = make(name, 2, size, 3 * size)
    params["gate_bias"] = make("gate_bias", 2, size, init=hk.initializers.Constant(2.0))
    return params


class _Transformer(hk.Module):
    """All layers, as one loop or one by one."""

    def __init__(self, num_layers: int, num_heads: int, size: int, loop: bool, name: str):
        super().__init__(name)
        self._num_layers, self._num_heads, self._size = num_layers, num_heads, size
        self._loop = loop

    def __call__(
        self, x: jax.Array, state: TransformerState, first: jax.Array, burn_in: int = 0
    ) -> tuple[jax.Array, TransformerState]:
        """See `Core.unroll`."""
        x = hk.Linear(self._size, name="embedding")(x)
        params: Params
        if self._loop:
            params = _parameters(self._num_heads, self._size, (self._num_layers,), x.dtype)
        else:
            params = [
                _Parameters(self._num_heads, self._size, (), name=f"layer_{i}")(x.dtype)
                for i in range(self._num_layers)
            ]
            # So that no layer waits for the memory of another one.
            state = state._replace(rows=[state.rows[:, i] for i in range(self._num_layers)])
        x, state = _unroll_twice(params, x, state, jnp.asarray(first, bool), burn_in)
        return x, state if self._loop else state._replace(rows=jnp.stack(state.rows, axis=1))


Params = dict[str, jax.Array] | list[dict[str, jax.Array]]
"""Of all layers [L, ...], or of each layer."""


def _unroll_twice(
    params: Params, x: jax.Array, state: TransformerState, first: jax.Array, burn_in: int
) -> tuple[jax.Array, TransformerState]:
    """All layers over x [B, T, H], whose first rows pass no gradient on to the others."""
    if not burn_in:
        return _unroll(params, x, state, first)
    early, state = _unroll(params, x[:, :burn_in], state, first[:, :burn_in])

    def held(rows: jax.Array) -> jax.Array:
        begins = jnp.expand_dims(first[:, 0], tuple(range(1, rows.ndim)))
        return jnp.where(begins, rows, jax.lax.stop_gradient(rows))

    state = state._replace(rows=jax.tree.map(held, state.rows))
    late, state = _unroll(params, x[:, burn_in:], state, first[:, burn_in:])
    return jnp.concatenate([early, late], axis=1), state


def _unroll(
    params: Params, x: jax.Array, state: TransformerState, first: jax.Array
) -> tuple[jax.Array, TransformerState]:
    """All layers over x [B, T, H]; the state is of the batch, its rows a list without a loop."""
    length, memory = x.shape[1], jax.tree.leaves(state.rows)[0].shape[-2]
    # The episode of every key: those of the memory are of the first, or of none (-1).
    episode = jnp.cumsum(first.astype(jnp.int32), axis=1)
    is_held = jnp.arange(memory, 0, -1) <= state.held[:, None]
    of_keys = jnp.concatenate([jnp.where(is_held, 0, -1), episode], axis=1)
    distance = jnp.arange(memory, memory + length)[:, None] - jnp.arange(memory + length)
    is_near = (distance >= 0) & (distance <= memory)
    visible = is_near & (of_keys[:, None, :] == episode[:, :, None])
    stays = of_keys[:, -memory:] == episode[:, -1:]
    positions = _sinusoids(memory, x.shape[-1]).astype(x.dtype)

    def layer(x: jax.Array, given: Any) -> tuple[jax.Array, jax.Array]:
        of_layer, rows = given
        known = jnp.concatenate([rows.astype(x.dtype), x], axis=1)
        x = _layer(of_layer, known, visible, positions)
        return x, jnp.where(stays[..., None], known[:, -memory:], 0.0).astype(jnp.float32)

    rows: Any
    if isinstance(params, dict):
        x, rows = jax.lax.scan(layer, x, (params, jnp.swapaxes(state.rows, 0, 1)))
        rows = jnp.swapaxes(rows, 0, 1)
    else:
        rows = []
        for given in zip(params, state.rows, strict=True):
            x, new = layer(x, given)
            rows.append(new)
    held = jnp.sum(stays, axis=1, dtype=jnp.int32)
    return x, TransformerState(rows, held)


def _layer(
    p: dict[str, jax.Array], known: jax.Array, visible: jax.Array, positions: jax.Array
) -> jax.Array:
    """One layer.

    Args:
      p: its parameters.
      known: [B, K, H], the memory first.
      visible: [B, T, K].
      positions: [M + 1, H], of distances from M down to 0.

    Returns:
      [B, T, H]
    """
    x = known[:, -visible.shape[1] :]
    attended = _attend(p, _normalize(p, 0, known), visible, positions)
    x = _gate(p, 0, x, jax.nn.relu(attended))
    hidden = jax.nn.relu(_normalize(p, 1, x) @ p["up"] + p["up_bias"])
    return _gate(p, 1, x, jax.nn.relu(hidden @ p["down"] + p["down_bias"]))


def _normalize(p: dict[str, jax.Array], place: int, x: jax.Array) -> jax.Array:
    """Layer normalisation, in float32."""
    whole = x.astype(jnp.float32)
    centred = whole - jnp.mean(whole, axis=-1, keepdims=True)
    scaled = centred * jax.lax.rsqrt(jnp.mean(centred**2, axis=-1, keepdims=True) + 1e-5)
    return scaled.astype(x.dtype) * p["norm_scale"][place] + p["norm_offset"][place]


def _attend(
    p: dict[str, jax.Array], x: jax.Array, visible: jax.Array, positions: jax.Array
) -> jax.Array:
    """The last T of rows [B, K, H] look at those that `visible` [B, T, K] says."""
    num_heads, width = p["content_bias"].shape

    def heads(rows: jax.Array, name: str) -> jax.Array:
        rows = rows @ p[name]
        return rows.reshape(*rows.shape[:-1], num_heads, width)

    query, key = heads(x[:, -visible.shape[1] :], "query"), heads(x, "key")
    of_content = jnp.einsum("btnd,bknd->bntk", query + p["content_bias"], key)
    of_position = jnp.einsum(
        "btnd,mnd->bntm", query + p["position_bias"], heads(positions, "position")
    )
    logits = (of_content + _by_key(of_position)).astype(jnp.float32) * width**-0.5
    logits = jnp.where(visible[:, None], logits, jnp.finfo(jnp.float32).min)
    weights = jax.nn.softmax(logits).astype(x.dtype)
    attended = jnp.einsum("bntk,bknd->btnd", weights, heads(x, "value"))
    return attended.reshape(*attended.shape[:2], num_heads * width) @ p["output"]


def _sinusoids(greatest: int, size: int) -> jax.Array:
    """Distances from `greatest` down to 0 as sines and cosines, [greatest + 1, size]."""
    rates = 10_000.0 ** -(jnp.arange(0, size, 2) / size)
    angles = jnp.arange(greatest, -1, -1)[:, None] * rates
    return jnp.concatenate([jnp.sin(angles), jnp.cos(angles)], axis=-1)[:, :size]


def _by_key(x: jax.Array) -> jax.Array:
    """[..., T, M + 1], by distance from M down to 0, as [..., T, K]: row t moves t to the right.

    Where no distance belongs stands what is not to be looked at.
    """
    *leading, length, distances = x.shape
    keys = distances - 1 + length
    padded = jnp.pad(x, [(0, 0)] * (x.ndim - 1) + [(0, length)])
    flat = padded.reshape(*leading, length * (keys + 1))
    return flat[..., : length * keys].reshape(*leading, length, keys)


def _gate(p: dict[str, jax.Array], place: int, x: jax.Array, y: jax.Array) -> jax.Array:
    """Joins a layer's output y [B, T, H] with its input x [B, T, H], as a GRU does.

    Section 3.2, with a bias towards x.
    """
    size = x.shape[-1]
    new, old = y @ p["gate_new"][place], p["gate_old"][place]
    r, z = jnp.split(new[..., : 2 * size] + x @ old[:, : 2 * size], 2, axis=-1)
    z = jax.nn.sigmoid(z - p["gate_bias"][place])
    candidate = new[..., 2 * size :] + (jax.nn.sigmoid(r) * x) @ old[:, 2 * size :]
    return (1.0 - z) * x + z * jnp.tanh(candidate)
