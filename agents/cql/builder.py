"""Builder of CQL."""

from __future__ import annotations

from ...environments.specs import EnvironmentSpec
from ..builder import OfflineBuilder, StochasticPolicy
from ..interfaces import Update
from ..sac.networks import SACNetworks, make_networks
from .config import CQLConfig
from .update import make_update


class CQLBuilder(StochasticPolicy[CQLConfig, SACNetworks], OfflineBuilder[CQLConfig, SACNetworks]):
    """Conservative Q-learning, for actions in a box: with SAC's networks."""

    name = "cql"
    config_class = CQLConfig

    def make_networks(self, spec: EnvironmentSpec) -> SACNetworks:
        return make_networks(self.name, spec, self.config)

    def make_update(self, networks: SACNetworks, spec: EnvironmentSpec) -> Update:
        return make_update(networks, spec, self.config)
