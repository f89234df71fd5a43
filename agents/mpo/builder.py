"""Builder of MPO."""

from __future__ import annotations

from typing import ClassVar

from ...environments.spaces import ActionMode
from ...environments.specs import EnvironmentSpec
from ..builder import OffPolicyBuilder, StochasticPolicy
from ..interfaces import Update
from .config import MPOConfig
from .networks import MPONetworks, make_networks
from .update import make_update


class MPOBuilder(
    StochasticPolicy[MPOConfig, MPONetworks], OffPolicyBuilder[MPOConfig, MPONetworks]
):
    """Maximum a posteriori policy optimisation, for actions of every kind."""

    name = "mpo"
    config_class = MPOConfig
    honours_action_masks = True
    # Within finite bounds actions are squashed; others are the environment's affair.
    actions: ClassVar[ActionMode] = "clip"

    def make_networks(self, spec: EnvironmentSpec) -> MPONetworks:
        return make_networks(spec, self.config)

    def make_update(self, networks: MPONetworks, spec: EnvironmentSpec) -> Update:
        return make_update(networks, self.config)
