"""Policy and value of PPO."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from ...environments.specs import EnvironmentSpec
from .. import legal_actions
from ..networks import assembly
from ..networks.core import Network, dummy, from_haiku
from ..networks.distributions import Distribution, for_actions
from ..networks.recurrent import RecurrentNetwork, make_recurrent
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
    torso, head = assembly.actor_critic(
        spec, config, actions, initial_free=config.initial_log_std, activation=jnp.tanh
    )
    if config.is_recurrent:
        core = assembly.make_core(config)
        recurrent = make_recurrent(spec.observations, torso, core, head)
        return PPONetworks(legal_actions.recurrent_policy_outputs(recurrent), actions)

    def apply(observation: Nest) -> tuple[jax.Array, jax.Array]:
        return head(jax.tree.map(lambda x: x.astype(jnp.float32), torso(observation)))

    network = from_haiku(apply, dummy(spec.observations, 1))
    return PPONetworks(legal_actions.policy_outputs(network), actions)
