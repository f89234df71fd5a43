"""Choices among legal actions: functions of values or logits, and of a mask.

An observation may hold a mask of the actions that are legal (`environments.action_masks`). Who
chooses, bootstraps or learns asks for it with `legal_actions.of`, and hands it to a function here.
Without a mask, None, these functions do what they would do if there were none.

Letters: A values of a discrete action, or of several choices one behind the other; `...`: leading
dimensions.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from ..environments import action_masks
from .networks.core import Network
from .networks.recurrent import RecurrentNetwork

Nest = Any
LEAST = -1e9
"""Logit or value of an illegal action: its probability is 0, and 0 times its logarithm too."""


def of(observation: Nest) -> jax.Array | None:
    """Returns the mask of observations, bool [..., A], or None where there is none.

    Where a mask allows nothing everything is legal: so it is behind the end of an episode, and in
    the padding of sequences, of which nothing is learned.
    """
    given = action_masks.find(observation)
    if given is None:
        return None
    mask = jnp.asarray(given) != 0
    return mask | ~jnp.any(mask, axis=-1, keepdims=True)


def restrict(values: jax.Array, mask: jax.Array | None) -> jax.Array:
    """Returns values or logits [..., A] with `LEAST` for illegal actions."""
    return values if mask is None else jnp.where(mask, values, LEAST)


def best(values: jax.Array, mask: jax.Array | None) -> jax.Array:
    """Returns the legal actions [...] of the greatest values [..., A]."""
    return jnp.argmax(restrict(values, mask), axis=-1)


def nth(mask: jax.Array, share: jax.Array) -> jax.Array:
    """Returns the legal action that lies at a share of all of them, int32 [].

    Args:
      mask: [A].
      share: [] from 0 to below 1; drawn uniformly, so is the action.
    """
    counts = jnp.cumsum(mask)
    before = jnp.minimum(jnp.floor(share * counts[-1]), counts[-1] - 1)
    return jnp.argmax(counts > before).astype(jnp.int32)


def beside(value: Nest, observation: Nest) -> Nest:
    """Returns a value with the mask of an observation beside it, as observations have it.

    `action_masks.visible` gives the value back, and `of` the mask: for policies that choose by what
    a network says of an observation.
    """
    mask = action_masks.find(observation)
    return value if mask is None else {action_masks.OBSERVATION: value, action_masks.KEY: mask}


def policy_outputs(network: Network) -> Network:
    """Returns a network of observations to logits that restricts them to legal actions.

    Args:
      network: its `apply` gives logits [B, A], or a tuple with them first.
    """

    def apply(params: Nest, observation: Nest, **options: Any) -> Any:
        return _first_restricted(network.apply(params, observation, **options), of(observation))

    return network._replace(apply=apply)


def recurrent_policy_outputs(network: RecurrentNetwork) -> RecurrentNetwork:
    """Returns a recurrent network likewise: its outputs are logits, or a tuple with them first."""

    def restricted(function: Callable[..., tuple[Nest, Nest]]) -> Callable[..., tuple[Nest, Nest]]:
        def call(params: Nest, observation: Nest, *rest: Any, **options: Any) -> tuple[Nest, Nest]:
            outputs, state = function(params, observation, *rest, **options)
            return _first_restricted(outputs, of(observation)), state

        return call

    return network._replace(unroll=restricted(network.unroll), step=restricted(network.step))


def _first_restricted(outputs: Any, mask: jax.Array | None) -> Any:
    if not isinstance(outputs, tuple):
        return restrict(outputs, mask)
    return (restrict(outputs[0], mask), *outputs[1:])
