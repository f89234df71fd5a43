"""Builder of BC."""

from __future__ import annotations

from ...environments.specs import EnvironmentSpec
from ..builder import PolicyRegressionBuilder
from ..interfaces import Update
from .config import BCConfig
from .networks import BCNetworks, make_networks
from .update import make_update


class BCBuilder(PolicyRegressionBuilder[BCConfig, BCNetworks]):
    """Behavioural cloning, of actions of every kind."""

    name = "bc"
    config_class = BCConfig

    def make_networks(self, spec: EnvironmentSpec) -> BCNetworks:
        return make_networks(spec, self.config)

    def make_update(self, networks: BCNetworks, spec: EnvironmentSpec) -> Update:
        return make_update(networks, spec, self.config)
