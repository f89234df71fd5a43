"""Distributions over actions: records of pure functions of their parameters.

Written for one action; batch with `jax.vmap`. D: action dimensions, A: choices.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from dm_env import specs

from .core import describe


class Distribution(NamedTuple):
    """A family of distributions; `p` below are its parameters, as the network gives them.

    Attributes:
      num_parameters: size of the network's last layer.
      sample: `(p, key) -> action`.
      mode: `p -> action`, the likeliest.
      log_prob: `(p, action) -> []`.
      entropy: `p -> []`, in nats.
      free_parameters: how many further parameters the family has that do not depend on the
        observation; they stand behind those of the network in `p`.
    """

    num_parameters: int
    sample: Callable[[jax.Array, jax.Array], jax.Array]
    mode: Callable[[jax.Array], jax.Array]
    log_prob: Callable[[jax.Array, jax.Array], jax.Array]
    entropy: Callable[[jax.Array], jax.Array]
    free_parameters: int = 0


def categorical(num_values: int) -> Distribution:
    """One of A choices, from logits [A]; actions are int32 []."""

    def log_prob(logits, action):
        return jax.nn.log_softmax(logits)[action]

    def entropy(logits):
        log_probs = jax.nn.log_softmax(logits)
        return -jnp.sum(jnp.exp(log_probs) * log_probs)

    return Distribution(
        num_values,
        lambda logits, key: jax.random.categorical(key, logits).astype(jnp.int32),
        lambda logits: jnp.argmax(logits).astype(jnp.int32),
        log_prob,
        entropy,
    )


def independent_categoricals(num_values: tuple[int, ...]) -> Distribution:
    """D choices at once, of A_1, ..., A_D values; actions are int32 [D]."""
    parts = [categorical(number) for number in num_values]
    ends = np.cumsum(num_values)[:-1].tolist()

    def split(logits):
        return jnp.split(logits, ends)

    def sample(logits, key):
        keys = jax.random.split(key, len(parts))
        each = zip(parts, split(logits), keys, strict=True)
        return jnp.stack([part.sample(x, k) for part, x, k in each])

    return Distribution(
        sum(num_values),
        sample,
        lambda p: jnp.stack([part.mode(x) for part, x in zip(parts, split(p), strict=True)]),
        lambda p, action: sum(
            (part.log_prob(x, a) for part, x, a in zip(parts, split(p), action, strict=True)),
            jnp.zeros(()),
        ),
        lambda p: sum(
            (part.entropy(x) for part, x in zip(parts, split(p), strict=True)), jnp.zeros(())
        ),
    )


def gaussian(shape: tuple[int, ...]) -> Distribution:
    """Independent normal distributions of any real action of this shape, D numbers in all.

    The network gives the means [D]; the logarithms of the standard deviations [D] do not depend
    on the observation (Schulman et al., 2017, section 6.1).
    """
    size = math.prod(shape)

    def log_prob(p, action):
        mean, log_std = p[:size], p[size:]
        z = (jnp.ravel(action) - mean) * jnp.exp(-log_std)
        return -jnp.sum(0.5 * z**2 + log_std + 0.5 * math.log(2 * math.pi))

    def sample(p, key):
        return (p[:size] + jnp.exp(p[size:]) * jax.random.normal(key, (size,))).reshape(shape)

    return Distribution(
        size,
        sample,
        lambda p: p[:size].reshape(shape),
        log_prob,
        lambda p: jnp.sum(p[size:] + 0.5 * math.log(2 * math.pi * math.e)),
        free_parameters=size,
    )


def for_actions(agent: str, spec: specs.Array) -> Distribution:
    """The family for an action spec.

    Raises:
      ValueError: where there is none, saying which there are.
    """
    if isinstance(spec, specs.DiscreteArray):
        return categorical(int(spec.num_values))
    if isinstance(spec, specs.BoundedArray) and np.issubdtype(spec.dtype, np.floating):
        return gaussian(spec.shape)
    if (
        isinstance(spec, specs.BoundedArray)
        and np.issubdtype(spec.dtype, np.integer)
        and len(spec.shape) == 1
        and not np.any(spec.minimum)
    ):
        return independent_categoricals(
            tuple(int(x) + 1 for x in np.broadcast_to(spec.maximum, spec.shape))
        )
    raise ValueError(
        f"{agent} drives one discrete action, several at once (MultiDiscrete), or a box of real "
        f"numbers; this environment's actions are {describe(spec)}."
    )
