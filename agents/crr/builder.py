"""Builder of CRR."""

from __future__ import annotations

from typing import ClassVar

from ...environments.spaces import ActionMode
from ...environments.specs import EnvironmentSpec
from ..builder import OfflineBuilder, StochasticPolicy
from ..interfaces import Update
from .config import CRRConfig
from .networks import CRRNetworks, make_networks
from .update import make_update


class CRRBuilder(StochasticPolicy[CRRConfig, CRRNetworks], OfflineBuilder[CRRConfig, CRRNetworks]):
    """Critic-regularised regression, of discrete and continuous actions."""

    name = "crr"
    config_class = CRRConfig
    honours_action_masks = True
    # The likelihood is that of the action in the data; the bounds are the environment's affair.
    actions: ClassVar[ActionMode] = "clip"

    def make_networks(self, spec: EnvironmentSpec) -> CRRNetworks:
        return make_networks(spec, self.config)

    def make_update(self, networks: CRRNetworks, spec: EnvironmentSpec) -> Update:
        return make_update(networks, spec, self.config)
