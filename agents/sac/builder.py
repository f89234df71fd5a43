"""Builder of SAC."""

from __future__ import annotations

from ...environments.specs import EnvironmentSpec
from .. import action_spaces
from ..builder import OffPolicyBuilder, StochasticPolicy
from ..interfaces import Update
from .config import SACConfig
from .networks import SACNetworks, make_discrete_networks, make_networks
from .update import make_update


class SACBuilder(
    StochasticPolicy[SACConfig, SACNetworks], OffPolicyBuilder[SACConfig, SACNetworks]
):
    """Soft actor-critic, for actions in a box or one discrete action."""

    name = "sac"
    config_class = SACConfig
    honours_action_masks = True

    def make_networks(self, spec: EnvironmentSpec) -> SACNetworks:
        if action_spaces.kinds_of(spec.actions) == {action_spaces.CHOICE}:
            return make_discrete_networks(spec, self.config)
        return make_networks(self.name, spec, self.config)

    def make_update(self, networks: SACNetworks, spec: EnvironmentSpec) -> Update:
        return make_update(networks, spec, self.config)
