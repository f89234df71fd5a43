"""Policy and critics of CRR."""

from __future__ import annotations

from typing import NamedTuple

from ...environments.specs import EnvironmentSpec
from ..networks import critics
from ..networks.core import Network
from ..networks.distributions import Distribution, for_actions
from ..networks.policies import make_stochastic_policy
from .config import CRRConfig


class CRRNetworks(NamedTuple):
    """Networks that CRR learns."""

    policy: Network
    """`apply(params, observation [B, ...])` gives action parameters [B, P]."""
    critic: Network
    """`apply(params, observation [B, ...], action [B, ...])` gives values [2, B]; logits
    [2, B, Z] where critic_loss is categorical."""
    actions: Distribution


def make_networks(spec: EnvironmentSpec, config: CRRConfig) -> CRRNetworks:
    """MLPs, with the Nature network before them on images, each with its own.

    Raises:
      ValueError: where there is no distribution for the environment's actions.
    """
    actions, sizes = for_actions("crr", spec.actions), config.hidden_sizes
    policy = make_stochastic_policy(spec, actions, sizes, torso=config.torso, **config.log_stds())
    return CRRNetworks(policy, critics.of_config(spec, config), actions)
