"""Draws tokens from logits, and the log-probabilities that a sampler and a learner agree on.

V: tokens.
"""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp

_FORBIDDEN = -1e30
"""Logit of a token that may not come: finite, so that 0 times its log-probability is 0."""


@dataclasses.dataclass(frozen=True)
class Sampling:
    """The choice of a token from a distribution.

    Raises:
      ValueError: if a field is out of its range.
    """

    temperature: float = 1.0
    """Logits are divided by it. 0: always the likeliest token."""
    top_k: int | None = None
    """Draws among so many of the likeliest tokens, and those as likely as the last of them; None:
    among all."""
    top_p: float | None = None
    """Draws among the fewest of the likeliest tokens whose probabilities add up to this; None:
    among all."""

    def __post_init__(self) -> None:
        if self.temperature < 0:
            raise ValueError(f"temperature is {self.temperature}; it must be at least 0.")
        if self.top_k is not None and self.top_k < 1:
            raise ValueError(f"top_k is {self.top_k}; it must be at least 1, or None for all.")
        if self.top_p is not None and not 0 < self.top_p <= 1:
            raise ValueError(f"top_p is {self.top_p}; it must be in (0, 1], or None for all.")

    @property
    def is_greedy(self) -> bool:
        """True if the likeliest token is taken, whatever the key."""
        return self.temperature == 0 or self.top_k == 1


def draw(
    logits: jax.Array, keys: jax.Array, sampling: Sampling, allowed: jax.Array | None = None
) -> tuple[jax.Array, jax.Array]:
    """Draws a token of each row.

    A row's draw depends on its own logits and key alone.

    Args:
      logits: [B, V].
      keys: [B].
      sampling: how a token is chosen.
      allowed: bool, broadcastable to [B, V]; None: every token may come.

    Returns:
      Tokens, int32 [B], and their `log_probs`, float32 [B]. What top-k and top-p leave out does not
      change these, so that a learner finds the same numbers from logits alone.
    """
    scores = _scores(logits, sampling.temperature, allowed)
    if sampling.is_greedy:
        token = jnp.argmax(scores, axis=-1)
    else:
        noise = jax.vmap(lambda key: jax.random.gumbel(key, logits.shape[-1:]))(keys)
        token = jnp.argmax(_truncate(scores, sampling) + noise, axis=-1)
    token = token.astype(jnp.int32)
    return token, _log_prob(scores, token)


def log_probs(
    logits: jax.Array,
    tokens: jax.Array,
    temperature: float = 1.0,
    allowed: jax.Array | None = None,
) -> jax.Array:
    """Returns the log-probabilities of tokens by temperature and grammar, in float32.

    Args:
      logits: [..., V], of which each chose a token.
      tokens: int32 [...].
      temperature: as of `Sampling`; with 0 they are those of temperature 1.
      allowed: bool, broadcastable to [..., V]; None: every token may come.

    Returns:
      float32 [...]
    """
    return _log_prob(_scores(logits, temperature, allowed), tokens)


def _scores(logits: jax.Array, temperature: float, allowed: jax.Array | None) -> jax.Array:
    """Logits of the distribution, float32."""
    scores = logits.astype(jnp.float32) / (temperature or 1.0)
    return scores if allowed is None else jnp.where(allowed, scores, _FORBIDDEN)


def _log_prob(scores: jax.Array, tokens: jax.Array) -> jax.Array:
    # A masked sum, as the vocabulary may be spread over a mesh, where a gather would collect it.
    is_token = jnp.arange(scores.shape[-1]) == tokens[..., None]
    chosen = jnp.sum(jnp.where(is_token, scores, 0.0), axis=-1)
    return chosen - jax.nn.logsumexp(scores, axis=-1)


def _truncate(scores: jax.Array, sampling: Sampling) -> jax.Array:
    """Forbids what top-k and top-p leave out. Of equal scores all stay, or none."""
    size = scores.shape[-1]
    kept = min(sampling.top_k or size, size)
    if kept == size and sampling.top_p is None:
        return scores
    best = jax.lax.top_k(scores, kept)[0]
    least = best[..., -1:]
    if sampling.top_p is not None:
        probabilities = jax.nn.softmax(best, axis=-1)
        before = jnp.cumsum(probabilities, axis=-1) - probabilities
        least = jnp.min(jnp.where(before < sampling.top_p, best, jnp.inf), axis=-1, keepdims=True)
    return jnp.where(scores >= least, scores, _FORBIDDEN)
