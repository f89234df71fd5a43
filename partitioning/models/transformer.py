"""A decoder-only transformer with the choices that change how it partitions."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import jax
import jax.numpy as jnp

from . import layers, optimizers
from .example import DATA_AND_MODEL, Example
from .training import initial_state, supervised

Params = layers.Params

#: The values of a block that `jax.checkpoint` may keep for the backward pass, by name.
REMATERIALIZATION = {
    "nothing": jax.checkpoint_policies.nothing_saveable,
    "dots": jax.checkpoint_policies.dots_saveable,
    "dots_no_batch": jax.checkpoint_policies.dots_with_no_batch_dims_saveable,
}


@dataclasses.dataclass(frozen=True)
class Sizes:
    """Sizes and choices of the transformer.

    Attributes:
      batch: sequences in a batch.
      length: tokens in a sequence.
      vocabulary: number of distinct tokens.
      width: model features; a multiple of num_heads.
      num_heads: attention heads.
      hidden: features within the MLP; 4 * width when 0.
      num_layers: blocks.
      fused_qkv: one matrix for queries, keys and values, heads outermost, instead of three.
      tied: the output matrix is the embedding's transpose.
      pre_norm: layer norm before each branch (and a last one), instead of after each residual sum.
      rotary: rotary positions (https://arxiv.org/abs/2104.09864) instead of learned ones.
      bias: biases in the matrices.
      padding: the batch says how long each sequence is; tokens beyond are masked out.
      dropout: rate after the embedding and each branch.
      typed_key: the state's key is of the new, typed kind.
      scan: one `lax.scan` over stacked layers instead of an unrolled loop.
      checkpoint: "none", or a key of REMATERIALIZATION.
      dtype: of activations ("float32", "bfloat16", "float64"); what is narrower than float32 is
        widened to it in norms, attention weights and the loss.
      param_dtype: of parameters, likewise.
      optimizer: "sgd" or "adam".
      clip: the global norm that gradients are clipped to, or None.
    """

    batch: int = 8
    length: int = 8
    vocabulary: int = 32
    width: int = 16
    num_heads: int = 4
    hidden: int = 0
    num_layers: int = 1
    fused_qkv: bool = False
    tied: bool = False
    pre_norm: bool = True
    rotary: bool = False
    bias: bool = True
    padding: bool = False
    dropout: float = 0.0
    typed_key: bool = False
    scan: bool = False
    checkpoint: str = "none"
    dtype: str = "float32"
    param_dtype: str = "float32"
    optimizer: str = "sgd"
    clip: float | None = None

    def __post_init__(self) -> None:
        if self.width % self.num_heads:
            raise ValueError(
                f"width={self.width} is no multiple of num_heads={self.num_heads}; "
                "choose one that is"
            )
        if self.checkpoint not in ("none", *REMATERIALIZATION):
            raise ValueError(
                f"checkpoint={self.checkpoint!r}; it is one of none, {', '.join(REMATERIALIZATION)}"
            )

    @property
    def mlp_width(self) -> int:
        return self.hidden or 4 * self.width


def make(**sizes: Any) -> Example:
    """Next-token prediction on random tokens."""
    config = Sizes(**sizes)
    optimizer = optimizers.make(config.optimizer, clip=config.clip)
    keyed = config.dropout > 0

    def loss(params: Params, batch: Params, key: jax.Array | None = None) -> jax.Array:
        logits = apply(config, params, batch["tokens"], batch.get("lengths"), key)
        log_probs = jax.nn.log_softmax(layers.widened(logits))
        targets = jax.nn.one_hot(batch["targets"], config.vocabulary)
        losses = -jnp.sum(log_probs * targets, axis=-1)
        if "lengths" not in batch:
            return jnp.mean(losses)
        valid = jnp.arange(config.length) < batch["lengths"][:, None]
        return jnp.sum(losses * valid) / jnp.sum(valid)

    def make_batch(key: jax.Array) -> dict[str, jax.Array]:
        token_key, length_key = jax.random.split(key)
        shape = (config.batch, config.length + 1)
        tokens = jax.random.randint(token_key, shape, 0, config.vocabulary)
        batch = {"tokens": tokens[:, :-1], "targets": tokens[:, 1:]}
        if config.padding:
            low, high = max(1, config.length // 2), config.length + 1
            batch["lengths"] = jax.random.randint(length_key, (config.batch,), low, high)
        return batch

    return Example(
        name="transformer",
        update=supervised(loss, optimizer, keyed),
        init=initial_state(
            lambda key: params_init(config, key), optimizer, keyed, config.typed_key
        ),
        make_batch=make_batch,
        schedules=(
            *DATA_AND_MODEL,
            "batch:data,embedding:model",
            "batch:data,sequence:model",
            "batch:data,megatron:model,embedding:model,zero3:data",
        ),
        config=config,
    )


def params_init(config: Sizes, key: jax.Array) -> Params:
    """Parameters; with `scan`, those of the blocks are stacked in "blocks" [num_layers, ...]."""
    keys = jax.random.split(key, 3 + config.num_layers)
    dtype = _dtype(config.param_dtype)
    width, vocabulary = config.width, config.vocabulary
    params: Params = {
        "embedding": layers.dtype_scalar(0.1, dtype)
        * jax.random.normal(keys[0], (vocabulary, width), dtype)
    }
    if not config.rotary:
        params["positions"] = layers.dtype_scalar(0.1, dtype) * jax.random.normal(
            keys[1], (config.length, width), dtype
        )
    if config.scan:
        params["blocks"] = jax.vmap(lambda k: _block_init(config, k))(keys[3:])
    else:
        for i in range(config.num_layers):
            params[f"block_{i}"] = _block_init(config, keys[3 + i])
    if config.pre_norm:
        params["norm"] = layers.layer_norm_init(width, dtype)
    if not config.tied:
        params["head"] = layers.linear_init(keys[2], width, vocabulary, config.bias, dtype)
    return params


def _block_init(config: Sizes, key: jax.Array) -> Params:
    keys = jax.random.split(key, 6)
    dtype = _dtype(config.param_dtype)
    width = config.width

    def matrix(k: jax.Array, n_in: int, n_out: int) -> Params:
        return layers.linear_init(k, n_in, n_out, config.bias, dtype)

    if config.fused_qkv:
        attention = {"qkv": matrix(keys[0], width, 3 * width)}
    else:
        attention = {name: matrix(keys[i], width, width) for i, name in enumerate("qkv")}
    return {
        "attention": {**attention, "out": matrix(keys[3], width, width)},
        "norm_1": layers.layer_norm_init(width, dtype),
        "mlp": {
            "up": matrix(keys[4], width, config.mlp_width),
            "down": matrix(keys[5], config.mlp_width, width),
        },
        "norm_2": layers.layer_norm_init(width, dtype),
    }


def _dtype(name: str) -> Any:
    """The dtype of that name, which TensorFlow, where imported, gives to a bfloat16 of its own."""
    return jnp.dtype(getattr(jnp, name))


def apply(
    config: Sizes,
    params: Params,
    tokens: jax.Array,
    lengths: jax.Array | None = None,
    key: jax.Array | None = None,
) -> jax.Array:
    """tokens int [B, T] -> logits [B, T, vocabulary]; a key turns dropout on and is consumed."""
    dtype = _dtype(config.dtype)
    keys = None if key is None else jax.random.split(key, config.num_layers + 1)
    x = params["embedding"].astype(dtype)[tokens]
    if not config.rotary:
        x = x + params["positions"].astype(dtype)
    if keys is not None:
        x = layers.dropout(keys[0], x, config.dropout)

    mask = jnp.tril(jnp.ones((config.length, config.length), bool))[None, None]
    if lengths is not None:
        mask = mask & (jnp.arange(config.length) < lengths[:, None])[:, None, None]

    def block(x: jax.Array, block_params: Params, block_key: jax.Array | None) -> jax.Array:
        return _block(config, block_params, x, mask, block_key)

    if config.checkpoint != "none":
        block = jax.checkpoint(block, policy=REMATERIALIZATION[config.checkpoint])
    if config.scan:
        x, _ = jax.lax.scan(
            lambda x, layer: (block(x, *layer), None),
            x,
            (params["blocks"], None if keys is None else keys[1:]),
        )
    else:
        for i in range(config.num_layers):
            x = block(x, params[f"block_{i}"], None if keys is None else keys[1 + i])
    if config.pre_norm:
        x = layers.layer_norm(params["norm"], x)
    if config.tied:
        return x @ params["embedding"].astype(dtype).T
    return layers.linear(params["head"], x)


def _block(
    config: Sizes, params: Params, x: jax.Array, mask: jax.Array, key: jax.Array | None
) -> jax.Array:
    keys = (None, None) if key is None else jax.random.split(key)

    def attend(h: jax.Array) -> jax.Array:
        return _dropout(config, keys[0], _attention(config, params["attention"], h, mask))

    def transform(h: jax.Array) -> jax.Array:
        h = jax.nn.gelu(layers.linear(params["mlp"]["up"], h))
        return _dropout(config, keys[1], layers.linear(params["mlp"]["down"], h))

    if config.pre_norm:
        x = x + attend(layers.layer_norm(params["norm_1"], x))
        return x + transform(layers.layer_norm(params["norm_2"], x))
    x = layers.layer_norm(params["norm_1"], x + attend(x))
    return layers.layer_norm(params["norm_2"], x + transform(x))


def _dropout(config: Sizes, key: jax.Array | None, x: jax.Array) -> jax.Array:
    return x if key is None else layers.dropout(key, x, config.dropout)


def _attention(config: Sizes, params: Params, x: jax.Array, mask: jax.Array) -> jax.Array:
    """x [B, T, D], mask bool [B or 1, 1, T or 1, T] -> [B, T, D]."""
    batch, length, width = x.shape
    heads, size = config.num_heads, width // config.num_heads
    if config.fused_qkv:
        # Heads outermost, so that splitting the columns splits heads and not queries from keys.
        qkv = layers.linear(params["qkv"], x).reshape(batch, length, heads, 3, size)
        q, k, v = qkv[..., 0, :], qkv[..., 1, :], qkv[..., 2, :]
    else:
        q, k, v = (
            layers.linear(params[name], x).reshape(batch, length, heads, size) for name in "qkv"
        )
    if config.rotary:
        q, k = _rotate(q), _rotate(k)
    scores = layers.widened(jnp.einsum("bthd,bshd->bhts", q, k)) / math.sqrt(size)
    weights = jax.nn.softmax(jnp.where(mask, scores, -1e9)).astype(x.dtype)
    mixed = jnp.einsum("bhts,bshd->bthd", weights, v)
    return layers.linear(params["out"], mixed.reshape(batch, length, width))


def _rotate(x: jax.Array) -> jax.Array:
    """Turns the two halves of each head's features by an angle that grows with time."""
    length, size = x.shape[1], x.shape[-1]
    frequency = 10_000.0 ** (-jnp.arange(0, size, 2) / size)
    angle = jnp.arange(length)[:, None, None] * frequency
    cos, sin = jnp.cos(angle).astype(x.dtype), jnp.sin(angle).astype(x.dtype)
    a, b = jnp.split(x, 2, axis=-1)
    return jnp.concatenate([a * cos - b * sin, a * sin + b * cos], axis=-1)
