"""Builder of IQL."""

from __future__ import annotations

from ...environments.specs import EnvironmentSpec
from ..builder import PolicyRegressionBuilder
from ..interfaces import Update
from .config import IQLConfig
from .networks import IQLNetworks, make_networks
from .update import make_update


class IQLBuilder(PolicyRegressionBuilder[IQLConfig, IQLNetworks]):
    """Implicit Q-learning, of actions of every kind."""

    name = "iql"
    config_class = IQLConfig

    def make_networks(self, spec: EnvironmentSpec) -> IQLNetworks:
        return make_networks(spec, self.config)

    def make_update(self, networks: IQLNetworks, spec: EnvironmentSpec) -> Update:
        return make_update(networks, self.config)
