"""The policy of BC."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from ...environments.specs import EnvironmentSpec
from ..networks import heads
from ..networks.core import Network, dummy, from_haiku
from ..networks.distributions import Distribution, for_actions
from ..networks.torsos import make_torso
from .config import BCConfig

Nest = Any


class BCNetworks(NamedTuple):
    """`policy.apply(params, observation [B, ...])` gives action parameters [B, P]."""

    policy: Network
    actions: Distribution


def make_networks(spec: EnvironmentSpec, config: BCConfig) -> BCNetworks:
    """An MLP, or the Nature network on images, to a distribution over actions.

    Raises:
      ValueError: where there is no distribution for the environment's actions.
    """
    actions = for_actions("bc", spec.actions)

    def apply(observation: Nest) -> jax.Array:
        features = make_torso(spec.observations, config.hidden_sizes)(observation)
        parameters = heads.action_parameters(
            features, actions, scale=0.01, initial_free=config.initial_log_std
        )
        if not actions.free_parameters:
            return parameters
        means, log_std = jnp.split(parameters, [actions.num_parameters], axis=-1)
        return jnp.concatenate([means, jnp.maximum(log_std, config.least_log_std)], axis=-1)

    return BCNetworks(from_haiku(apply, dummy(spec.observations, 1)), actions)
