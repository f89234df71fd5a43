"""Masks of the columns that are tokens, and of the tokens that may come.

An `AnswerArray` names `pad`, `end`, the `vocabulary` of its tokenizer and a `grammar`: a finite
automaton whose state 0 begins an answer.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from ...environments.specs import AnswerArray


def prompt_mask(prompt: jax.Array, pad: int) -> jax.Array:
    """True from the first column that is not padding: bool [..., P] of left-padded prompts."""
    return jnp.cumsum(prompt != pad, axis=-1) > 0


def answer_mask(tokens: jax.Array, pad: int, end: int) -> jax.Array:
    """True up to the first `end`, which is a token too: bool [..., T] of right-padded answers."""
    is_end = tokens == end
    before = jnp.cumsum(is_end, axis=-1) - is_end == 0
    return before if pad == end else before & (tokens != pad)


def possible(answer: AnswerArray, vocabulary: int) -> np.ndarray:
    """Tokens that may ever come: all that the tokenizer has, but for padding.

    Args:
      answer: the spec of answers.
      vocabulary: V of the decoder.

    Returns:
      bool [V]

    Raises:
      ValueError: if the decoder has too few tokens, or the grammar comes to a state in which no
        token may come.
    """
    if answer.vocabulary > vocabulary:
        raise ValueError(
            f"the tokenizer has {answer.vocabulary} tokens and the decoder {vocabulary}: give the "
            f"decoder a vocabulary of {answer.vocabulary} or more."
        )
    mask = np.arange(vocabulary) < answer.vocabulary
    if answer.pad != answer.end:
        mask[answer.pad] = False
    if answer.grammar is not None:
        _require_ways_on(np.asarray(answer.grammar), mask[: answer.vocabulary], answer.end)
    return mask


def _require_ways_on(grammar: np.ndarray, mask: np.ndarray, end: int) -> None:
    """Raises ValueError where a state that tokens lead to, without the end, allows none."""
    reached, unseen = {0}, [0]
    while unseen:
        state = unseen.pop()
        after = np.where(mask, grammar[state], -1)
        if (after < 0).all():
            raise ValueError(
                f"in state {state} the grammar allows no token: let it end there (token {end})."
            )
        after[end] = -1
        found = {int(one) for one in np.unique(after[after >= 0])} - reached
        reached |= found
        unseen += found


def allowed(answer: AnswerArray, vocabulary: int, states: jax.Array) -> jax.Array:
    """Tokens that may come in states [...] of the grammar.

    Returns:
      bool [..., V], or [V] where there is no grammar.
    """
    mask = jnp.asarray(possible(answer, vocabulary))
    if answer.grammar is None:
        return mask
    rows = jnp.asarray(answer.grammar)[states] >= 0
    beyond = [(0, 0)] * states.ndim + [(0, vocabulary - answer.vocabulary)]
    return jnp.pad(rows, beyond) & mask


def advance(answer: AnswerArray, states: jax.Array, tokens: jax.Array) -> jax.Array:
    """The grammar's states after tokens, int32 [...]; of an answer that has ended it is any."""
    if answer.grammar is None:
        return states
    return jnp.maximum(jnp.asarray(answer.grammar)[states, tokens], 0)


def states_along(answer: AnswerArray, tokens: jax.Array) -> jax.Array:
    """The grammar's states before each token of whole answers [..., T], int32 [..., T].

    For a learner that takes logits in chunks, as `allowed` tells from them what might have come.
    """
    if answer.grammar is None:
        return jnp.zeros(tokens.shape, jnp.int32)

    def step(states: jax.Array, tokens: jax.Array) -> tuple[jax.Array, jax.Array]:
        return advance(answer, states, tokens), states

    begin = jnp.zeros(tokens.shape[:-1], jnp.int32)
    _, states = jax.lax.scan(step, begin, jnp.moveaxis(tokens, -1, 0))
    return jnp.moveaxis(states, 0, -1)


def allowed_along(answer: AnswerArray, vocabulary: int, tokens: jax.Array) -> jax.Array:
    """Tokens that might have come in the place of each token of whole answers.

    Args:
      answer: their spec.
      vocabulary: V of the decoder.
      tokens: int32 [..., T].

    Returns:
      bool [..., T, V], or [V] where there is no grammar.
    """
    return allowed(answer, vocabulary, states_along(answer, tokens))
