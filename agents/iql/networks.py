"""Policy, critics and value of IQL."""

from __future__ import annotations

from typing import NamedTuple

from ...environments.specs import EnvironmentSpec
from ..networks import critics
from ..networks.core import Network
from ..networks.distributions import Distribution, for_actions
from ..networks.policies import make_stochastic_policy
from .config import IQLConfig


class IQLNetworks(NamedTuple):
    """Networks that IQL learns."""

    policy: Network
    """`apply(params, observation [B, ...])` gives action parameters [B, P]."""
    critic: Network
    """`apply(params, observation [B, ...], action [B, ...])` gives values [2, B]; logits
    [2, B, Z] where critic_loss is categorical."""
    value: Network
    """`apply(params, observation [B, ...])` gives values [B]."""
    actions: Distribution


def make_networks(spec: EnvironmentSpec, config: IQLConfig) -> IQLNetworks:
    """MLPs, with the Nature network before them on images, each with its own.

    Raises:
      ValueError: where there is no distribution for the environment's actions.
    """
    actions, sizes = for_actions("iql", spec.actions), config.hidden_sizes
    policy = make_stochastic_policy(spec, actions, sizes, torso=config.torso, **config.log_stds())
    value = critics.make_value(spec, sizes, torso=config.torso)
    return IQLNetworks(policy, critics.of_config(spec, config), value, actions)
