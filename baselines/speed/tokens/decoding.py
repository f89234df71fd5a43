"""Decoding beside a bare loop over its products, and continuous beside static batching."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ....agents.generation.continuous import ContinuousBatch
from ....agents.generation.loop import generate
from ....agents.generation.sampling import Sampling
from ....agents.networks.decoder import Decoder, DecoderConfig
from ....environments.specs import AnswerArray
from .clock import in_turn

Nest = Any
_PAD, _END = 0, 1


def endless(config: DecoderConfig, length: int) -> AnswerArray:
    """The spec of one answer that never ends before its last token."""
    grammar = np.zeros((1, config.vocabulary), np.int32)
    grammar[0, _END] = -1
    return AnswerArray((1, length), config.vocabulary, _PAD, _END, grammar)


def make_prompts(config: DecoderConfig, count: int, columns: int) -> jax.Array:
    """Prompts without padding, int32 [count, columns]."""
    random = np.random.default_rng(0)
    return jnp.asarray(random.integers(2, config.vocabulary, (count, columns)), jnp.int32)


def bare_loop(
    config: DecoderConfig, params: Nest, batch: int, columns: int, length: int
) -> jax.Array:
    """Computes the products of `length` tokens of each row, as decoding does, and nothing else.

    They are those of every layer, of attention over all columns, and of the logits. Nothing is
    normalised, rotated, drawn or written.

    Args:
      config: of the decoder.
      params: as of `Decoder.apart`.
      batch: rows.
      columns: of the cache.
      length: tokens.

    Returns:
      Something that depends on all of them.
    """
    heads = batch, config.num_kv_heads
    one = jnp.ones((*heads, columns, config.head_width), config.compute_dtype)
    # Each an array of its own, as those of a cache are.
    caches = jax.lax.optimization_barrier([(one * i, -one * i) for i in range(config.num_layers)])
    matrix, contracted = (params["embedding"], 1) if config.tied else (params["head"], 0)

    def token(_: jax.Array, x: jax.Array) -> jax.Array:
        for p, (keys, values) in zip(params["layers"], caches, strict=True):
            query, key, value = (x @ p[name] for name in ("query", "key", "value"))
            rows = query.reshape(*heads, -1, config.head_width)
            weights = jnp.einsum("bkre,bkce->bkrc", rows, keys)
            mixed = jnp.einsum("bkrc,bkce->bkre", weights, values).reshape(batch, -1)
            x = (mixed + jnp.max(key * value)) @ p["output"]
            x = ((x @ p["gate"]) * (x @ p["up"])) @ p["down"]
        logits = jax.lax.dot_general(x, matrix, (((1,), (contracted,)), ((), ())))
        return 1e-3 * (x + jnp.max(logits))  # Small, so that nothing overflows.

    x = jnp.ones((batch, config.width), config.compute_dtype)
    return jax.lax.fori_loop(0, length, token, x)


def decoding(
    config: DecoderConfig, *, batch: int, prompt: int, length: int, rounds: int
) -> dict[str, Any]:
    """Measures the tokens that are decoded after the first, beside the bare loop of as many.

    Prefill is what an answer of one token takes. Rates of decoding are None where the rest took
    less than this machine's noise, so that a whole answer was no slower than its first token.
    """
    decoder = Decoder(config)
    params = jax.jit(decoder.init)(jax.random.key(0))
    apart = jax.jit(decoder.apart)(params)
    prompts = make_prompts(config, batch, prompt)
    keys = jax.random.split(jax.random.key(1), (batch, 1))

    def drawn(length: int) -> Any:
        answer = endless(config, length)
        return jax.jit(
            lambda params: generate(decoder, params, prompts, keys, answer, Sampling()).tokens
        )

    whole, first = drawn(length), drawn(1)
    bare = jax.jit(lambda params: bare_loop(config, params, batch, prompt + length - 1, length - 1))
    best = in_turn(
        {
            "whole": lambda: whole(params),
            "first": lambda: first(params),
            "bare": lambda: bare(apart),
        },
        rounds,
    )
    after_first = best["whole"] - best["first"]
    seen = after_first > 0
    return {
        "prefill_seconds": best["first"],
        "decode_tokens_per_second": batch * (length - 1) / after_first if seen else None,
        "bare_tokens_per_second": batch * (length - 1) / best["bare"],
        "share_of_bare": best["bare"] / after_first if seen else None,
    }


def batching(
    config: DecoderConfig, *, slots: int, prompt: int, length: int, batches: int, rounds: int
) -> dict[str, Any]:
    """Measures answers of different lengths, in batches one after another and continuously.

    Of a model that has learned nothing each token is about as likely as any other, so that lengths
    are those of a memoryless end, cut off at `length`; on average about a quarter of it.
    """
    decoder, count = Decoder(config), slots * batches
    answer = AnswerArray((1, length), min(config.vocabulary, 2 + length // 4), _PAD, _END)
    params = jax.jit(lambda: decoder.init(jax.random.key(0)))()
    params["embedding"] *= 0.1  # So that the end is as likely as any other token.
    variables = {"decoder": params, "steps": np.int32(0)}
    prompts = np.random.default_rng(0).integers(2, answer.vocabulary, (count, prompt))
    prompts = prompts.astype(np.int32)
    keys = jax.random.split(jax.random.key(1), (count, 1))
    words = np.asarray(jax.random.key_data(keys))
    run = jax.jit(
        lambda params, prompts, keys: generate(decoder, params, prompts, keys, answer, Sampling())
    )
    continuous = ContinuousBatch(decoder, answer, Sampling(), slots, prompt)
    continuous.warm_up(variables)

    def static() -> np.ndarray:
        parts = [slice(start, start + slots) for start in range(0, count, slots)]
        return np.concatenate([run(params, prompts[part], keys[part]).tokens for part in parts])

    def slotted() -> np.ndarray:
        for i in range(count):
            continuous.add(i, prompts[i], words[i])
        found = {}
        while not continuous.is_idle:
            found.update({one.name: one.answers.tokens for one in continuous.turn()})
        return np.stack([found[i] for i in range(count)])

    tokens = static()
    same = float((tokens == slotted()).all(axis=-1).mean())
    lengths = (tokens != _PAD).sum(-1)
    best = in_turn({"static": static, "continuous": slotted}, rounds)
    return {
        "answers": count,
        "mean_length": float(lengths.mean()),
        "longest_of_batches": float(lengths.reshape(batches, slots).max(-1).mean()),
        "equal_answers": same,
        **{f"{name}_tokens_per_second": lengths.sum() / best[name] for name in best},
        "continuous_over_static": best["static"] / best["continuous"],
    }
