"""Policy and critic of MPO."""

from __future__ import annotations

from typing import NamedTuple

from ...environments.specs import EnvironmentSpec
from ..networks import critics
from ..networks.core import Network
from ..networks.distributions import Distribution, for_actions
from ..networks.policies import make_stochastic_policy
from .config import MPOConfig


class MPONetworks(NamedTuple):
    """Networks that MPO learns."""

    policy: Network
    """`apply(params, observation [B, ...])` gives action parameters [B, P]."""
    critic: Network
    """`apply(params, observation [B, ...], action [B, ...])` gives values [1, B], or logits of
    returns [1, B, Z]."""
    actions: Distribution


def make_networks(spec: EnvironmentSpec, config: MPOConfig) -> MPONetworks:
    """MLPs, with the Nature network before them on images, each with its own.

    Raises:
      ValueError: where there is no distribution for the environment's actions.
    """
    actions = for_actions("mpo", spec.actions, squashed=True)
    return MPONetworks(
        make_stochastic_policy(spec, actions, config.hidden_sizes, torso=config.torso),
        critics.of_config(
            spec,
            config,
            size=1,
            num_atoms=config.num_atoms if config.distributional else None,
        ),
        actions,
    )
