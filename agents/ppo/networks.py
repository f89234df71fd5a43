"""Policy and value of PPO."""

from __future__ import annotations

from typing import Any, NamedTuple

import haiku as hk
import jax
import jax.numpy as jnp

from ...environments.specs import EnvironmentSpec
from ..networks.core import Linear, Network, dummy, from_haiku, is_image, make_torso
from ..networks.distributions import Distribution, for_actions
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
        head = Linear(
            actions.num_parameters, w_init=hk.initializers.Orthogonal(0.01), name="policy_head"
        )
        value_head = Linear(1, w_init=hk.initializers.Orthogonal(1.0), name="value_head")
        parameters = head(policy_features)
        if actions.free_parameters:
            free = hk.get_parameter(
                "log_std",
                (actions.free_parameters,),
                init=hk.initializers.Constant(config.initial_log_std),
            )
            free = jnp.broadcast_to(free, (*parameters.shape[:-1], actions.free_parameters))
            parameters = jnp.concatenate([parameters, free], axis=-1)
        return parameters, value_head(value_features)[..., 0]

    return PPONetworks(from_haiku(apply, dummy(spec.observations, 1)), actions)
