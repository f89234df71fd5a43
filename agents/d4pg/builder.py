"""Builder of D4PG."""

from __future__ import annotations

from ...environments.specs import EnvironmentSpec
from ..builder import DeterministicPolicy, OffPolicyBuilder
from ..interfaces import Update
from .config import D4PGConfig
from .networks import D4PGNetworks, make_networks
from .update import make_update


class D4PGBuilder(
    DeterministicPolicy[D4PGConfig, D4PGNetworks], OffPolicyBuilder[D4PGConfig, D4PGNetworks]
):
    """Deterministic policy gradients of a distributional critic, for actions in a box."""

    name = "d4pg"
    config_class = D4PGConfig

    def make_networks(self, spec: EnvironmentSpec) -> D4PGNetworks:
        return make_networks(spec, self.config)

    def make_update(self, networks: D4PGNetworks, spec: EnvironmentSpec) -> Update:
        return make_update(networks, self.config)
