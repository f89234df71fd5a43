"""Policy and value of PPO."""

from __future__ import annotations

from typing import Any, NamedTuple

import haiku as hk
import jax
import jax.numpy as jnp

from ...environments.specs import EnvironmentSpec
from ..networks import heads
from ..networks.core import Network, dummy, from_haiku
from ..networks.distributions import Distribution, for_actions
from ..networks.torsos import is_image, make_torso
from .config import PPOConfig

Nest = Any


class PPONetworks(NamedTuple):
    """`network.apply(params, observation [B, ...])` gives (action parameters [B, P], value [B])."""

    network: Network
    actions: Distribution


def make_networks(spec: EnvironmentSpec, config: PPOConfig) -> PPONetworks:
    """Two MLPs of hyperbolic tangents; one shared torso of convolutions on images.

    Orthogonal initialisation with a small last layer of the policy, as Andrychowicz et al. (2021),
    https://arxiv.org/abs/2006.05990, found to matter.

    Raises:
      ValueError: where there is no distribution for the environment's actions.
    """
    actions = for_actions("ppo", spec.actions)
    image = is_image(spec.observations)

    def apply(observation: Nest) -> tuple[jax.Array, jax.Array]:
        def torso():
            orthogonal = hk.initializers.Orthogonal(2.0**0.5)
            make = make_torso(spec.observations, config.hidden_sizes, jnp.tanh, orthogonal)
            return make(observation)

        policy_features = torso()
        value_features = policy_features if image else torso()
        parameters = heads.action_parameters(
            policy_features, actions, scale=0.01, initial_free=config.initial_log_std
        )
        return parameters, heads.state_value(value_features)

    return PPONetworks(from_haiku(apply, dummy(spec.observations, 1)), actions)
