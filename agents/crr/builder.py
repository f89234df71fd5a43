"""Builder of CRR."""

from __future__ import annotations

from ...environments.specs import EnvironmentSpec
from ..builder import PolicyRegressionBuilder
from ..interfaces import Update
from .config import CRRConfig
from .networks import CRRNetworks, make_networks
from .update import make_update


class CRRBuilder(PolicyRegressionBuilder[CRRConfig, CRRNetworks]):
    """Critic-regularised regression, of actions of every kind."""

    name = "crr"
    config_class = CRRConfig

    def make_networks(self, spec: EnvironmentSpec) -> CRRNetworks:
        return make_networks(spec, self.config)

    def make_update(self, networks: CRRNetworks, spec: EnvironmentSpec) -> Update:
        return make_update(networks, spec, self.config)
