"""Search in the model, by mctx."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from ...environments import registry
from .. import legal_actions
from .config import MuZeroConfig
from .networks import MuZeroNetworks, expected, make_atoms

Nest = Any


class SearchResult(NamedTuple):
    """Result of a search."""

    action: jax.Array
    """[B] int32, the best."""
    policy: jax.Array
    """[B, A] probabilities of actions, better than the network's."""
    value: jax.Array
    """[B] the return of that policy, by the search."""


def make_search(networks: MuZeroNetworks, config: MuZeroConfig) -> Callable[..., SearchResult]:
    """`search(params, observation [B, ...], key, gumbel_scale)`: Gumbel MuZero's.

    Danihelka et al. (2022), https://openreview.net/forum?id=bERaNdoegnO. With a `gumbel_scale` of 1
    actions are drawn, and nothing is with 0, where the key does not matter. The model's episodes
    may end: what lies behind counts as much as they are likely to go on. At its root a search knows
    which actions are legal, and considers no others; behind it the model's own logits, which learn
    of policies of legal actions alone, make the others unlikely.

    Raises:
      MissingExtraError: where mctx is not installed.
    """
    mctx: Any = registry.import_extra("mctx", "muzero", "muzero")
    atoms = make_atoms(config)

    def predict(params: MuZeroNetworks, state):
        logits, of_return = networks.prediction.apply(params.prediction, state)
        return logits, expected(of_return, atoms)

    def advance(params: MuZeroNetworks, key, action, state):
        state, of_reward, goes_on = networks.dynamics.apply(params.dynamics, state, action)
        logits, value = predict(params, state)
        output = mctx.RecurrentFnOutput(
            reward=expected(of_reward, atoms),
            discount=config.discount * jax.nn.sigmoid(goes_on),
            prior_logits=logits,
            value=value,
        )
        return output, state

    def search(params: MuZeroNetworks, observation, key, gumbel_scale: float) -> SearchResult:
        state = networks.representation.apply(params.representation, observation)
        logits, value = predict(params, state)
        mask = legal_actions.of(observation)
        found = mctx.gumbel_muzero_policy(
            params,
            key,
            mctx.RootFnOutput(prior_logits=logits, value=value, embedding=state),
            advance,
            config.num_simulations,
            invalid_actions=None if mask is None else ~mask,
            max_depth=config.search_depth,
            max_num_considered_actions=config.max_considered_actions,
            gumbel_scale=gumbel_scale,
            qtransform=functools.partial(
                mctx.qtransform_completed_by_mix_value, value_scale=config.value_scale
            ),
        )
        # The root's own mean is over actions as often as they were looked at: all alike.
        root = found.search_tree.summary()
        weights = jnp.where(root.visit_counts > 0, found.action_weights, 0.0)
        value = jnp.sum(weights * root.qvalues, axis=-1) / jnp.sum(weights, axis=-1)
        return SearchResult(found.action.astype("int32"), found.action_weights, value)

    return search
