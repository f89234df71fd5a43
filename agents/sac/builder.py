"""Builder of SAC."""

from __future__ import annotations

from ...environments.specs import EnvironmentSpec
from ..builder import OffPolicyBuilder, StochasticPolicy
from ..interfaces import Update
from .config import SACConfig
from .networks import SACNetworks, make_networks
from .update import make_update


class SACBuilder(
    StochasticPolicy[SACConfig, SACNetworks], OffPolicyBuilder[SACConfig, SACNetworks]
):
    """Soft actor-critic, for actions in a box."""

    name = "sac"
    config_class = SACConfig

    def make_networks(self, spec: EnvironmentSpec) -> SACNetworks:
        return make_networks(self.name, spec, self.config)

    def make_update(self, networks: SACNetworks, spec: EnvironmentSpec) -> Update:
        return make_update(networks, spec, self.config)
