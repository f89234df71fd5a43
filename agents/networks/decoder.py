"""Decoder-only transformers of the Llama and Qwen3 families, with a cache of keys and values.

Grattafiori et al., 2024 (https://arxiv.org/abs/2407.21783) and Yang et al., 2025
(https://arxiv.org/abs/2505.09388): RMS norms before each branch (Zhang and Sennrich, 2019,
https://arxiv.org/abs/1910.07467), rotary positions (Su et al., 2021,
https://arxiv.org/abs/2104.09864), queries in groups that share keys and values (Ainslie et al.,
2023, https://arxiv.org/abs/2305.13245) and gated MLPs (Shazeer, 2020,
https://arxiv.org/abs/2002.05202).

Letters: B batch, T time, C columns of the cache, L layers, D width, V vocabulary, N heads of
queries, K heads of keys and values, G = N / K, E features of a head, F features inside an MLP.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

Params = dict[str, Any]
COMPUTE_DTYPES = ("float32", "bfloat16")


@dataclasses.dataclass(frozen=True)
class RotaryScaling:
    """Slower rotations for contexts longer than those first trained on, as in Llama 3.1."""

    factor: float
    """Divisor of low frequencies."""
    low_frequency: float = 1.0
    """Features that turn fewer times than this over the first context are of a low frequency."""
    high_frequency: float = 4.0
    """Those that turn more often than this keep their frequency; between, the two are mixed."""
    first_context: int = 8192
    """Tokens of the context first trained on."""


@dataclasses.dataclass(frozen=True)
class DecoderConfig:
    """Sizes and choices of a decoder.

    Raises:
      ValueError: where heads do not divide, or a dtype is unknown.
    """

    vocabulary: int
    """V, the number of distinct tokens."""
    width: int
    """D, the features of a token between layers."""
    num_layers: int
    """L."""
    num_heads: int
    """N, the heads of queries; a multiple of `num_kv_heads`."""
    num_kv_heads: int
    """K, the heads of keys and values."""
    head_width: int
    """E, the features of a head; even."""
    hidden: int
    """F, the features inside an MLP."""
    rope_theta: float = 10_000.0
    """The base of rotary positions: the slowest feature turns once in about 2 pi times as many."""
    norm_epsilon: float = 1e-6
    """Added to the mean square in every norm."""
    tied: bool = True
    """Logits are products with the embedding, instead of with a matrix of their own."""
    qk_norm: bool = False
    """Queries and keys are normalised head by head, as in Qwen3."""
    compute_dtype: str = "float32"
    """Dtype of activations and of the cache: float32 or bfloat16."""
    rope_scaling: RotaryScaling | None = None
    """Slower rotations, as in Llama 3.1."""
    context: int | None = None
    """The longest row that the parameters were trained for, where that is known."""
    rematerialize: bool = False
    """The backward pass computes a layer anew from its input, and keeps nothing else of it."""

    def __post_init__(self) -> None:
        sizes = ("vocabulary", "width", "num_layers", "num_heads", "num_kv_heads", "head_width")
        for name in (*sizes, "hidden"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}={getattr(self, name)}; choose at least 1")
        if self.num_heads % self.num_kv_heads:
            raise ValueError(
                f"num_heads={self.num_heads} is no multiple of num_kv_heads={self.num_kv_heads}; "
                "each head of keys serves as many heads of queries"
            )
        if self.head_width % 2:
            raise ValueError(
                f"head_width={self.head_width} is odd; rotary positions turn pairs of features"
            )
        if self.compute_dtype not in COMPUTE_DTYPES:
            raise ValueError(
                f"compute_dtype={self.compute_dtype!r}; it is one of {', '.join(COMPUTE_DTYPES)}"
            )


class Cache(NamedTuple):
    """Keys and values of tokens seen so far, turned by their positions already."""

    keys: Any
    """[L, B, K, C, E] in the compute dtype: what a product reads of one head is in one piece; for
    parameters that are apart a tuple of L arrays [B, K, C, E]."""
    values: Any
    """Likewise."""
    is_token: jax.Array
    """bool [B, C]: columns that hold a token, and not padding or nothing."""


@dataclasses.dataclass(frozen=True)
class Decoder:
    """Pure functions of a config.

    Parameters are "embedding" [V, D], "layers" of arrays [L, ...], "norm" [D] and, where not tied,
    "head" [D, V]. Matrices take rows: [L, features in, features out].

    A row's positions count its tokens, so that it may be padded at either side. Padding is not
    looked at; what is computed for it has no meaning.
    """

    config: DecoderConfig

    def init(self, key: jax.Array) -> Params:
        """Random parameters, float32, that hold the features of every layer at about unit size."""
        c = self.config
        keys = iter(jax.random.split(key, len(shapes(c)["layers"]) + 2))

        def make(name: str, shape: tuple[int, ...]) -> jax.Array:
            if name.endswith("norm"):
                return jnp.ones(shape)
            # A row of the embedding is an output's column too: its features in are D.
            scale = (c.width if name == "embedding" else shape[-2]) ** -0.5
            if name in ("output", "down"):
                scale *= (2 * c.num_layers) ** -0.5
            return scale * jax.random.truncated_normal(next(keys), -2.0, 2.0, shape)

        rest = shapes(c)
        layers = {name: make(name, shape) for name, shape in rest.pop("layers").items()}
        return {"layers": layers, **{name: make(name, shape) for name, shape in rest.items()}}

    def apply(self, params: Params, tokens: jax.Array, is_token: jax.Array) -> jax.Array:
        """tokens int [B, T], is_token bool [B, T] -> logits of next tokens, float32 [B, T, V]."""
        return self.logits(params, self.hidden(params, tokens, is_token))

    def hidden(self, params: Params, tokens: jax.Array, is_token: jax.Array) -> jax.Array:
        """`apply` before the logits: [B, T, D] in the compute dtype, for losses in chunks."""
        length = tokens.shape[1]
        visible = is_token[:, None, :] & jnp.tril(jnp.ones((length, length), bool))
        turns = _turns(self.config, _positions(is_token))

        def layer(x: jax.Array, p: Params) -> tuple[jax.Array, None]:
            query, key, value = _project(self.config, p, x, turns)
            attended = _attend(query, jnp.swapaxes(key, 1, 2), jnp.swapaxes(value, 1, 2), visible)
            return _rest(self.config, p, x, attended), None

        if self.config.rematerialize:
            layer = jax.checkpoint(layer, prevent_cse=False)
        x, _ = jax.lax.scan(layer, self._embed(params, tokens), params["layers"])
        return _normalize(self.config, params["norm"], x)

    def logits(self, params: Params, hidden: jax.Array) -> jax.Array:
        """hidden [..., D] -> float32 [..., V]; products of the compute dtype, sums of float32."""
        matrix, contracted = (params["embedding"], 1) if self.config.tied else (params["head"], 0)
        return jax.lax.dot_general(
            hidden,
            matrix.astype(hidden.dtype),
            (((hidden.ndim - 1,), (contracted,)), ((), ())),
            preferred_element_type=jnp.float32,
        )

    def apart(self, params: Params) -> Params:
        """A copy for `extend` in a loop: layers as a tuple of L, matrices in the compute dtype.

        A loop over stacked layers copies the matrices and the cache of each before it reads them,
        and casts them, at every token: it took 1.4 times as long on CPU (25 million parameters,
        8 rows, 256 columns).
        """

        def cast(name: str, x: jax.Array) -> jax.Array:
            # Norms are computed in float32, here as in the learner.
            return x if name.endswith("norm") else x.astype(self.config.compute_dtype)

        layers = {name: cast(name, x) for name, x in params["layers"].items()}
        rest = {name: cast(name, x) for name, x in params.items() if name != "layers"}
        of_layers = [
            dict(zip(layers, arrays, strict=True)) for arrays in zip(*layers.values(), strict=True)
        ]
        return {**rest, "layers": tuple(of_layers)}

    def empty_cache(self, batch: int, length: int, apart: bool = False) -> Cache:
        """A cache of `length` columns that holds nothing; `apart`: for such parameters."""
        c = self.config
        one = (batch, c.num_kv_heads, length, c.head_width)

        def make() -> Any:  # Each array of its own, so that all may be donated.
            if apart:
                return tuple(jnp.zeros(one, c.compute_dtype) for _ in range(c.num_layers))
            return jnp.zeros((c.num_layers, *one), c.compute_dtype)

        return Cache(make(), make(), jnp.zeros((batch, length), bool))

    def extend(
        self, params: Params, tokens: jax.Array, is_token: jax.Array, cache: Cache, at: jax.Array
    ) -> tuple[jax.Array, Cache]:
        """`hidden` of tokens that follow those of a cache, which then holds them too.

        Columns from `at` on are written over, so that a row begins anew where its `at` is 0.

        Args:
          params: see the class; or what `apart` makes of them.
          tokens: int [B, T].
          is_token: bool [B, T].
          cache: of C >= at + T columns, apart as the parameters are; to donate it saves a copy.
          at: int [], the column of the first token; or int [B], one for each row.

        Returns:
          hidden: [B, T, D] in the compute dtype.
          cache: of the same shapes.
        """
        at = jnp.asarray(at)
        columns = at[..., None] + jnp.arange(tokens.shape[1])
        of_cache = jnp.arange(cache.is_token.shape[1])
        before = jnp.sum(cache.is_token & (of_cache < at[..., None]), axis=1, keepdims=True)
        turns = _turns(self.config, before + _positions(is_token))
        is_held = _write(cache.is_token, is_token, at)
        visible = is_held[:, None, :] & (of_cache <= columns[..., None])

        def layer(x: jax.Array, keys: jax.Array, values: jax.Array, p: Params, *index: Any) -> Any:
            query, key, value = _project(self.config, p, x, turns)
            keys, values = _write(keys, key, at, *index), _write(values, value, at, *index)
            held = (keys[index[0]], values[index[0]]) if index else (keys, values)
            return _rest(self.config, p, x, _attend(query, *held, visible)), keys, values

        x = self._embed(params, tokens)
        if isinstance(params["layers"], tuple):
            keys, values = list(cache.keys), list(cache.values)
            for i, p in enumerate(params["layers"]):
                x, keys[i], values[i] = layer(x, keys[i], values[i], p)
            cache = Cache(tuple(keys), tuple(values), is_held)
        else:
            # The cache is carried and not scanned over: so a step writes T columns and not all.
            (x, *arrays), _ = jax.lax.scan(
                lambda carry, given: (layer(*carry, *given), None),
                (x, cache.keys, cache.values),
                (params["layers"], jnp.arange(self.config.num_layers)),
            )
            cache = Cache(arrays[0], arrays[1], is_held)
        return _normalize(self.config, params["norm"], x), cache

    def _embed(self, params: Params, tokens: jax.Array) -> jax.Array:
        return params["embedding"][tokens].astype(self.config.compute_dtype)


def shapes(config: DecoderConfig) -> dict[str, Any]:
    """The shapes of the parameters, as they are nested."""
    c = config
    queries, keys = c.num_heads * c.head_width, c.num_kv_heads * c.head_width
    layer = {
        "attention_norm": (c.width,),
        "query": (c.width, queries),
        "key": (c.width, keys),
        "value": (c.width, keys),
        "output": (queries, c.width),
        "mlp_norm": (c.width,),
        "gate": (c.width, c.hidden),
        "up": (c.width, c.hidden),
        "down": (c.hidden, c.width),
    }
    if c.qk_norm:
        layer |= {"query_norm": (c.head_width,), "key_norm": (c.head_width,)}
    rest = {"embedding": (c.vocabulary, c.width), "norm": (c.width,)}
    if not c.tied:
        rest["head"] = (c.width, c.vocabulary)
    return {"layers": {name: (c.num_layers, *s) for name, s in layer.items()}, **rest}


def num_parameters(config: DecoderConfig) -> int:
    """The number of parameters; a tied embedding counts once."""
    rest = shapes(config)
    return sum(math.prod(shape) for shape in (*rest.pop("layers").values(), *rest.values()))


def _positions(is_token: jax.Array) -> jax.Array:
    """The number of tokens before each of a row, int32 [B, T]; of padding, some number."""
    return jnp.cumsum(is_token, axis=1, dtype=jnp.int32) - 1


def _turns(config: DecoderConfig, positions: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Cosines and sines of positions, each float32 [B, T, 1, E / 2]."""
    angles = positions[..., None, None] * _frequencies(config)
    return jnp.cos(angles), jnp.sin(angles)


def _frequencies(config: DecoderConfig) -> np.ndarray:
    """Radians that pairs of features turn by from one position to the next, float32 [E / 2]."""
    pairs = np.arange(0, config.head_width, 2) / config.head_width
    frequencies = config.rope_theta**-pairs
    if (scaling := config.rope_scaling) is not None:
        turns = scaling.first_context * frequencies / (2 * math.pi)
        low, high = scaling.low_frequency, scaling.high_frequency
        kept = np.clip((turns - low) / (high - low), 0.0, 1.0)
        frequencies = frequencies * (kept + (1.0 - kept) / scaling.factor)
    return frequencies.astype(np.float32)


def _rotate(x: jax.Array, turns: tuple[jax.Array, jax.Array]) -> jax.Array:
    """Turns heads [B, T, heads, E]; feature i of the first half and i of the other are a pair."""
    cos, sin = turns
    a, b = jnp.split(x.astype(jnp.float32), 2, axis=-1)
    turned = jnp.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1)
    return _rounded(turned.astype(x.dtype))


def _normalize(config: DecoderConfig, scale: jax.Array, x: jax.Array) -> jax.Array:
    """RMS norm over the last dimension, in float32."""
    whole = x.astype(jnp.float32)
    square = jnp.mean(whole * whole, axis=-1, keepdims=True)
    scaled = whole * jax.lax.rsqrt(square + config.norm_epsilon) * scale
    return _rounded(scaled.astype(x.dtype))


def _project(
    config: DecoderConfig, p: Params, x: jax.Array, turns: tuple[jax.Array, jax.Array]
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Queries [B, T, N, E], keys and values [B, T, K, E] of a layer's input x [B, T, D]."""
    x = _normalize(config, p["attention_norm"], x)

    def heads(name: str) -> jax.Array:
        return _product(x, p[name]).reshape(*x.shape[:2], -1, config.head_width)

    query, key, value = heads("query"), heads("key"), heads("value")
    if config.qk_norm:
        query = _normalize(config, p["query_norm"], query)
        key = _normalize(config, p["key_norm"], key)
    return _rotate(query, turns), _rotate(key, turns), value


def _attend(query: jax.Array, keys: jax.Array, values: jax.Array, visible: jax.Array) -> jax.Array:
    """Attention of queries in groups; softmax in float32.

    Args:
      query: [B, T, N, E].
      keys: [B, K, C, E]; head k serves the queries of heads k G to k G + G - 1.
      values: [B, K, C, E].
      visible: bool [B, T, C].

    Returns:
      [B, T, N E]
    """
    batch, length, num_heads, width = query.shape
    num_kv_heads = keys.shape[1]
    grouped = query.reshape(batch, length, num_kv_heads, -1, width).transpose(0, 2, 3, 1, 4)
    # As rows of one matrix for each head of keys: on CPU products take three times as long that
    # have two dimensions beside the batch's (jax 0.12).
    rows = grouped.reshape(batch, num_kv_heads, -1, width)
    scores = jnp.einsum("bkre,bkce->bkrc", rows, keys, preferred_element_type=jnp.float32)
    scores = scores.reshape(batch, num_kv_heads, -1, length, keys.shape[2]) * width**-0.5
    # Padding sees nothing: its weights must be finite all the same, as zero times NaN is NaN.
    scores = jnp.where(visible[:, None, None], scores, jnp.finfo(jnp.float32).min)
    weights = (
        jax.nn.softmax(scores).astype(query.dtype).reshape(batch, num_kv_heads, -1, keys.shape[2])
    )
    mixed = _rounded(jnp.einsum("bkrc,bkce->bkre", _rounded(weights), values))
    mixed = mixed.reshape(grouped.shape)
    return mixed.transpose(0, 3, 1, 2, 4).reshape(batch, length, num_heads * width)


def _rest(config: DecoderConfig, p: Params, x: jax.Array, attended: jax.Array) -> jax.Array:
    """A layer from its attention [B, T, N E] on; x [B, T, D] is its input."""
    x = _rounded(x + _product(attended, p["output"]))
    h = _normalize(config, p["mlp_norm"], x)
    gate, up = (_product(h, p[name]).astype(jnp.float32) for name in ("gate", "up"))
    h = _rounded((jax.nn.silu(gate) * up).astype(x.dtype))
    return _rounded(x + _product(h, p["down"]))


def _product(x: jax.Array, matrix: jax.Array) -> jax.Array:
    """x [..., features in] times [features in, features out], in the dtype of x."""
    return _rounded(x @ matrix.astype(x.dtype))


def _rounded(x: jax.Array) -> jax.Array:
    """x as its dtype holds it: between operations that it fuses XLA keeps more digits.

    It fuses those of one token, of layers apart and of whole rows each in a way of its own, so that
    a log-probability of a sampler and a learner would differ by 0.02 in bfloat16.
    """
    if x.dtype == jnp.float32:
        return x
    info = jnp.finfo(x.dtype)
    return jax.lax.reduce_precision(x, info.nexp, info.nmant)


def _write(held: jax.Array, new: jax.Array, at: jax.Array, *layer: jax.Array) -> jax.Array:
    """Writes new [B, T, ...] into columns from `at` on.

    Args:
      held: [B, C] where new is [B, T]; else [B, K, C, E], or [L, B, K, C, E] with a `layer`.
      new: [B, T] or [B, T, K, E].
      at: int [] or [B].
      *layer: none, or int [].
    """
    inner = new.ndim > 2
    if at.ndim == 0:
        if inner:
            new = jnp.swapaxes(new, 1, 2)
        new = new.reshape((1,) * len(layer) + new.shape)
        begins: tuple[Any, ...] = (*layer, 0, 0, at, 0) if inner else (0, at)
        return jax.lax.dynamic_update_slice(held, new, begins)
    rows = jnp.arange(new.shape[0])[:, None]
    columns = at[:, None] + jnp.arange(new.shape[1])
    where = (*layer, rows, slice(None), columns) if inner else (rows, columns)
    return held.at[where].set(new, unique_indices=True)
