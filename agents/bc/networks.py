"""The policy of BC."""

from __future__ import annotations

from typing import NamedTuple

from ...environments.specs import EnvironmentSpec
from ..networks.core import Network
from ..networks.distributions import Distribution, for_actions
from ..networks.policies import make_stochastic_policy
from .config import BCConfig


class BCNetworks(NamedTuple):
    """`policy.apply(params, observation [B, ...])` gives action parameters [B, P]."""

    policy: Network
    actions: Distribution


def make_networks(spec: EnvironmentSpec, config: BCConfig) -> BCNetworks:
    """An MLP, or the Nature network on images, to a distribution over actions.

    Raises:
      ValueError: where there is no distribution for the environment's actions.
    """
    actions, stds = for_actions("bc", spec.actions), config.log_stds()
    sizes, torso = config.hidden_sizes, config.torso
    return BCNetworks(make_stochastic_policy(spec, actions, sizes, torso=torso, **stds), actions)
