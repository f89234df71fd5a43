"""A language model's rates on one device: decoding, training, and parameters for the sampler."""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ....agents.generation.likelihood import log_probs
from ....agents.learning.descent import descend
from ....agents.learning.optimizers import scale_by_adam
from ....agents.networks.decoder import Decoder, DecoderConfig, num_parameters
from ....partitioning import nearest
from .clock import in_turn, seconds
from .decoding import endless, make_prompts

_PRODUCT = 8192
"""Rows and columns of the product whose rate is taken for what the device reaches."""


def training(
    config: DecoderConfig, *, batch: int, prompt: int, length: int, rounds: int
) -> dict[str, Any]:
    """Measures gradient steps that make answers likelier, with Adam and [batch, prompt + length].

    Returns:
      "mfu": 6 operations for each parameter and token, over the device's peak; "of_products": over
      what a large product reaches in the same run. Attention and layers that the backward pass
      computes again count for nothing. Both are None on CPU, whose peak nobody tells.
    """
    decoder, optimizer, answer = Decoder(config), scale_by_adam(), endless(config, length)
    prompts = make_prompts(config, batch, prompt)
    tokens = make_prompts(config, batch, length)[:, None]

    def step(state: tuple[Any, Any]) -> tuple[Any, Any]:
        def loss(params: Any) -> tuple[jax.Array, None]:
            found, mask = log_probs(decoder, answer, params, prompts, tokens, 1.0)
            return -jnp.sum(found) / jnp.sum(mask), None

        found = descend(loss, optimizer, *state, max_norm=1.0, step_size=1e-4)
        return found.params, found.optimizer

    def init() -> tuple[Any, Any]:
        params = decoder.init(jax.random.key(0))
        return params, optimizer.init(params)

    state = jax.jit(init)()
    run = jax.jit(step, donate_argnums=0)
    state = jax.block_until_ready(run(state))  # Compiles.
    best = math.inf
    for _ in range(rounds):
        box = [state]
        best = min(best, seconds(lambda box=box: box.append(run(box[0]))))
        jax.block_until_ready(state := box[-1])
    count = batch * (prompt + length)
    operations = 6 * num_parameters(config) * count / best
    device = jax.local_devices()[0]
    known = device.platform != "cpu"
    peak = nearest(device, 1).matmul_flops[config.compute_dtype] if known else None
    reached = product_rate(config.compute_dtype, rounds) if known else None
    return {
        "train_seconds": best,
        "train_tokens_per_second": count / best,
        "mfu": operations / peak if peak else None,
        "of_products": operations / reached if reached else None,
    }


def product_rate(dtype: str, rounds: int) -> float:
    """Operations a second of one large product."""
    one = jnp.ones((_PRODUCT, _PRODUCT), dtype)
    run = jax.jit(jnp.matmul)
    return 2 * _PRODUCT**3 / in_turn({"product": lambda: run(one, one)}, rounds)["product"]


def sync(config: DecoderConfig, rounds: int) -> dict[str, Any]:
    """Measures what a sampler on the learner's own device does with newer parameters."""
    decoder = Decoder(config)
    params = jax.jit(decoder.init)(jax.random.key(0))
    run = jax.jit(decoder.apart)
    best = in_turn({"sync": lambda: run(params)}, rounds)["sync"]
    size = jnp.dtype(config.compute_dtype).itemsize
    moved = num_parameters(config) * (np.dtype(np.float32).itemsize + size)
    return {"sync_seconds": best, "sync_gigabytes_per_second": moved / best / 1e9}
