"""The log-probabilities of whole answers, as a learner computes them.

Letters: B groups, G answers of a group, P tokens of a prompt, T of an answer, D features of a
token, V tokens of the vocabulary, N rows.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from ...environments.specs import AnswerArray
from ..networks.decoder import Decoder
from . import masks, sampling

Nest = Any
MOST_LOGITS = 2**28
"""Logits that a learner holds at once, over all devices; more are taken in chunks. Each chunk reads
the output matrix and, over a mesh, sums its gradient between devices: few chunks are better."""


def log_probs(
    decoder: Decoder,
    answer: AnswerArray,
    params: Nest,
    prompt: jax.Array,
    tokens: jax.Array,
    temperature: float,
) -> tuple[jax.Array, jax.Array]:
    """The log-probabilities of answers, as the sampler records them.

    Args:
      decoder: the language model.
      answer: the spec of answers; T is that of `tokens`, and G any.
      params: of the decoder.
      prompt: int32 [B, P], left-padded.
      tokens: int32 [B, G, T], right-padded.
      temperature: as answers are drawn with.

    Returns:
      log_probs: float32 [B, G, T], 0 past the end of an answer.
      mask: float32 [B, G, T], 1 up to the end of an answer, the end included.
    """
    batch, group, length = tokens.shape
    is_answer = masks.answer_mask(tokens, answer.pad, answer.end)
    prompts = jnp.repeat(prompt, group, axis=0)
    flat, is_token = (x.reshape(batch * group, length) for x in (tokens, is_answer))
    hidden = decoder.hidden(
        params,
        jnp.concatenate([prompts, flat[:, :-1]], axis=1),
        jnp.concatenate([masks.prompt_mask(prompts, answer.pad), is_token[:, :-1]], axis=1),
    )[:, prompt.shape[1] - 1 :]
    vocabulary = decoder.config.vocabulary

    def of_chunk(hidden: jax.Array, tokens: jax.Array, states: jax.Array) -> jax.Array:
        """float32 [N, C] of hidden [N, C, D], tokens [N, C] and the grammar's states [N, C]."""
        may_come = masks.allowed(answer, vocabulary, states)
        return sampling.log_probs(decoder.logits(params, hidden), tokens, temperature, may_come)

    states = masks.states_along(answer, flat)
    found = _in_chunks(of_chunk, (hidden, flat, states), batch * group * vocabulary)
    found = jnp.where(is_token, found, 0.0).reshape(tokens.shape)
    return found, is_answer.astype(jnp.float32)


def _in_chunks(
    function: Callable[..., jax.Array], arrays: tuple[jax.Array, ...], logits: int
) -> jax.Array:
    """Applies a function to arrays [N, T, ...] in chunks of T, of which it keeps no logits.

    Args:
      function: from chunks [N, C, ...] to [N, C].
      arrays: given to it.
      logits: of one column of all N rows.
    """
    length = arrays[0].shape[1]
    fit = max(1, MOST_LOGITS // logits)
    if fit >= length:
        return function(*arrays)
    size = max(c for c in range(1, fit + 1) if length % c == 0)

    def split(x: jax.Array) -> jax.Array:
        return jnp.moveaxis(x.reshape(len(x), length // size, size, *x.shape[2:]), 1, 0)

    again = jax.checkpoint(function)
    found = jax.lax.map(lambda chunk: again(*chunk), tuple(map(split, arrays)))
    return jnp.moveaxis(found, 0, 1).reshape(len(arrays[0]), length)
