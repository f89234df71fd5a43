"""Builder of TD3."""

from __future__ import annotations

from ...environments.specs import EnvironmentSpec
from ..builder import DeterministicPolicy, OffPolicyBuilder
from ..interfaces import Update
from .config import TD3Config
from .networks import TD3Networks, make_networks
from .update import make_update


class TD3Builder(
    DeterministicPolicy[TD3Config, TD3Networks], OffPolicyBuilder[TD3Config, TD3Networks]
):
    """Twin delayed deep deterministic policy gradients, for actions in a box."""

    name = "td3"
    config_class = TD3Config

    def make_networks(self, spec: EnvironmentSpec) -> TD3Networks:
        return make_networks(spec, self.config)

    def make_update(self, networks: TD3Networks, spec: EnvironmentSpec) -> Update:
        return make_update(networks, spec, self.config)
