"""Policy and value of PPO."""

from __future__ import annotations

from typing import Any, NamedTuple

import haiku as hk
import jax
import jax.numpy as jnp

from ...environments.specs import EnvironmentSpec
from ..networks import assembly, heads
from ..networks.core import Network, dummy, from_haiku
from ..networks.distributions import Distribution, for_actions
from ..networks.recurrent import RecurrentNetwork
from ..networks.torsos import convolves
from .config import PPOConfig

Nest = Any


class PPONetworks(NamedTuple):
    """Networks that give (action parameters [..., P], value [...])."""

    network: Network | RecurrentNetwork
    """`apply(params, observation [B, ...])`, or `unroll` over windows of rows."""
    actions: Distribution


def make_networks(spec: EnvironmentSpec, config: PPOConfig) -> PPONetworks:
    """Two MLPs of hyperbolic tangents; one torso of both on images, or with a core behind it.

    Orthogonal initialisation with a small last layer of the policy, as Andrychowicz et al. (2021),
    https://arxiv.org/abs/2006.05990, found to matter.

    Raises:
      ValueError: where there is no distribution for the environment's actions.
    """
    actions = for_actions("ppo", spec.actions)
    if config.is_recurrent:
        network = assembly.make_actor_critic(
            spec, config, actions, initial_free=config.initial_log_std, activation=jnp.tanh
        )
        return PPONetworks(network, actions)
    is_image = convolves(spec.observations, config.torso)

    def apply(observation: Nest) -> tuple[jax.Array, jax.Array]:
        def torso():
            make = assembly.make_configured_torso(
                spec.observations, config, jnp.tanh, hk.initializers.Orthogonal(2.0**0.5)
            )
            return make(observation).astype(jnp.float32)

        policy_features = torso()
        value_features = policy_features if is_image else torso()
        parameters = heads.action_parameters(
            policy_features, actions, scale=0.01, initial_free=config.initial_log_std
        )
        return parameters, heads.state_value(value_features)

    return PPONetworks(from_haiku(apply, dummy(spec.observations, 1)), actions)
