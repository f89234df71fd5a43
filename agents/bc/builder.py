"""Builder of BC."""

from __future__ import annotations

from typing import ClassVar

from ...environments.spaces import ActionMode
from ...environments.specs import EnvironmentSpec
from ..builder import OfflineBuilder, StochasticPolicy
from ..interfaces import Update
from .config import BCConfig
from .networks import BCNetworks, make_networks
from .update import make_update


class BCBuilder(StochasticPolicy[BCConfig, BCNetworks], OfflineBuilder[BCConfig, BCNetworks]):
    """Behavioural cloning, of discrete and continuous actions."""

    name = "bc"
    config_class = BCConfig
    honours_action_masks = True
    # The likelihood is that of the action in the data; the bounds are the environment's affair.
    actions: ClassVar[ActionMode] = "clip"

    def make_networks(self, spec: EnvironmentSpec) -> BCNetworks:
        return make_networks(spec, self.config)

    def make_update(self, networks: BCNetworks, spec: EnvironmentSpec) -> Update:
        return make_update(networks, self.config)
