"""Builder of IQL."""

from __future__ import annotations

from typing import ClassVar

from ...environments.spaces import ActionMode
from ...environments.specs import EnvironmentSpec
from ..builder import OfflineBuilder, StochasticPolicy
from ..interfaces import Update
from .config import IQLConfig
from .networks import IQLNetworks, make_networks
from .update import make_update


class IQLBuilder(StochasticPolicy[IQLConfig, IQLNetworks], OfflineBuilder[IQLConfig, IQLNetworks]):
    """Implicit Q-learning, of discrete and continuous actions."""

    name = "iql"
    config_class = IQLConfig
    honours_action_masks = True
    # The likelihood is that of the action in the data; the bounds are the environment's affair.
    actions: ClassVar[ActionMode] = "clip"

    def make_networks(self, spec: EnvironmentSpec) -> IQLNetworks:
        return make_networks(spec, self.config)

    def make_update(self, networks: IQLNetworks, spec: EnvironmentSpec) -> Update:
        return make_update(networks, self.config)
