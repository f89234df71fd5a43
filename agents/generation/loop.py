"""Answers to prompts as one program: the prompts at once, then a loop over the answers' tokens."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from ...environments.specs import AnswerArray
from ..networks.decoder import Cache, Decoder
from . import masks
from .sampling import Sampling, draw

Nest = Any
Array = Any
"""A numpy array on the host; inside of a program, an array of jax."""


class Answers(NamedTuple):
    """Answers, and what the sampler said of their tokens."""

    tokens: Array
    """int32 [..., T], the end included, then padding"""
    log_probs: Array
    """float32 [..., T], see `sampling.log_probs`; 0 past the end"""


class AnswerRows(NamedTuple):
    """Answers that are being drawn."""

    answers: Answers
    """[B, T]"""
    token: jax.Array
    """int32 [B], the newest"""
    state: jax.Array
    """int32 [B], of the grammar"""
    ended: jax.Array
    """bool [B]"""


def begin(is_void: jax.Array, length: int, pad: int) -> AnswerRows:
    """Returns rows that have drawn nothing.

    Args:
      is_void: bool [B], true of rows without a prompt, which have ended.
      length: T.
      pad: the token of padding.
    """
    shape = len(is_void), length
    answers = Answers(jnp.full(shape, pad, jnp.int32), jnp.zeros(shape, jnp.float32))
    zeros = jnp.zeros(len(is_void), jnp.int32)
    return AnswerRows(answers, zeros, zeros, is_void)


def draw_next(
    rows: AnswerRows,
    logits: jax.Array,
    keys: jax.Array,
    at: jax.Array,
    answer: AnswerArray,
    sampling: Sampling,
) -> AnswerRows:
    """Draws the next token of every row that has not ended.

    Args:
      rows: B of them.
      logits: [B, V].
      keys: [B], of the answers: that of a token is folded from its row's and its place.
      at: int32 [] or [B], the place of the token in the answer.
      answer: the spec of answers.
      sampling: how a token is chosen.
    """
    of_tokens = jax.vmap(jax.random.fold_in)(keys, jnp.broadcast_to(at, keys.shape))
    may_come = masks.allowed(answer, logits.shape[-1], rows.state)
    token, log_prob = draw(logits, of_tokens, sampling, may_come)
    token = jnp.where(rows.ended, answer.pad, token)
    log_prob = jnp.where(rows.ended, 0.0, log_prob)
    here = jnp.arange(rows.answers.tokens.shape[-1]) == jnp.asarray(at)[..., None]
    here &= ~rows.ended[:, None]
    return AnswerRows(
        Answers(
            jnp.where(here, token[:, None], rows.answers.tokens),
            jnp.where(here, log_prob[:, None], rows.answers.log_probs),
        ),
        token,
        masks.advance(answer, rows.state, token),
        rows.ended | (token == answer.end),
    )


def generate(
    decoder: Decoder,
    params: Nest,
    prompt: jax.Array,
    keys: jax.Array,
    answer: AnswerArray,
    sampling: Sampling,
) -> Answers:
    """Answers every prompt G times.

    A prompt's cache is computed once, for all of its answers. The loop stops when all have ended. A
    prompt that is all padding gets padding. An answer depends on its prompt and its key alone,
    whatever else is in the batch.

    Args:
      decoder: the language model.
      params: its parameters.
      prompt: int32 [N, P], left-padded.
      keys: [N, G], one of each answer.
      answer: the spec of answers, [G, T]; T alone is looked at.
      sampling: how a token is chosen.

    Returns:
      Answers [N, G, T].
    """
    (num_prompts, group), length = keys.shape, answer.shape[-1]
    if sampling.is_greedy and group > 1:  # They are all alike.
        found = generate(decoder, params, prompt, keys[:, :1], answer, sampling)
        return jax.tree.map(lambda x: jnp.broadcast_to(x, (num_prompts, group, length)), found)
    params = decoder.apart(params)
    keys = keys.reshape(-1)
    columns = prompt.shape[1]
    is_token = masks.prompt_mask(prompt, answer.pad)
    empty = decoder.empty_cache(num_prompts, columns, apart=True)
    hidden, cache = decoder.extend(params, prompt, is_token, empty, jnp.int32(0))
    logits = decoder.logits(params, hidden[:, -1])
    cache = _widen(cache, group, length - 1)
    is_void = jnp.repeat(~jnp.any(is_token, axis=1), group)
    rows = begin(is_void, length, answer.pad)
    zero = jnp.int32(0)
    rows = draw_next(rows, jnp.repeat(logits, group, 0), keys, zero, answer, sampling)

    def goes_on(carry: tuple[jax.Array, AnswerRows, Cache]) -> jax.Array:
        at, rows, _ = carry
        return (at < length) & ~jnp.all(rows.ended)

    def step(carry: tuple[jax.Array, AnswerRows, Cache]) -> tuple[jax.Array, AnswerRows, Cache]:
        at, rows, cache = carry
        given = rows.token[:, None], ~rows.ended[:, None]
        hidden, cache = decoder.extend(params, *given, cache, columns + at - 1)
        logits = decoder.logits(params, hidden[:, 0])
        return at + 1, draw_next(rows, logits, keys, at, answer, sampling), cache

    _, rows, _ = jax.lax.while_loop(goes_on, step, (jnp.int32(1), rows, cache))
    return jax.tree.map(lambda x: x.reshape(num_prompts, group, length), rows.answers)


def _widen(cache: Cache, times: int, more: int) -> Cache:
    """A cache with every row so many times, and so many columns more, which are no tokens."""

    def widen(x: jax.Array, column: int) -> jax.Array:
        after = [(0, more if dim == column else 0) for dim in range(x.ndim)]
        return jnp.pad(jnp.repeat(x, times, 0), after)

    keys, values = (tuple(widen(x, 2) for x in part) for part in (cache.keys, cache.values))
    return Cache(keys, values, widen(cache.is_token, 1))
