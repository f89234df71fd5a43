"""Policy and critics of SAC."""

from __future__ import annotations

from typing import NamedTuple

from ...environments.specs import EnvironmentSpec
from ..networks.core import Network, require_box
from ..networks.critics import make_critic
from ..networks.distributions import Distribution, tanh_gaussian
from ..networks.policies import make_stochastic_policy
from .config import SACConfig


class SACNetworks(NamedTuple):
    """What SAC learns."""

    policy: Network
    """`apply(params, observation [B, ...])` gives action parameters [B, P]."""
    critic: Network
    """`apply(params, observation [B, ...], action [B, ...])` gives values [E, B]."""
    actions: Distribution


def make_networks(spec: EnvironmentSpec, config: SACConfig) -> SACNetworks:
    """MLPs, with the Nature network before them on images, each with its own.

    Raises:
      ValueError: where actions are not real numbers between finite bounds.
    """
    box = require_box("sac", spec)
    actions = tanh_gaussian(box.minimum, box.maximum)
    return SACNetworks(
        make_stochastic_policy(spec, actions, config.hidden_sizes),
        make_critic(spec, config.hidden_sizes, size=config.num_critics),
        actions,
    )
