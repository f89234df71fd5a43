"""BC, said once."""

from __future__ import annotations

from typing import ClassVar

import jax

from ...environments.spaces import ActionMode
from ...environments.specs import EnvironmentSpec
from ..acting import policies
from ..builder import OfflineBuilder
from ..interfaces import ActorCore, Update
from .config import BCConfig
from .networks import BCNetworks, make_networks
from .update import make_update


class BCBuilder(OfflineBuilder[BCConfig, BCNetworks]):
    """Behavioural cloning, of discrete and continuous actions."""

    name = "bc"
    config_class = BCConfig
    # The likelihood is that of the action in the data; the bounds are the environment's affair.
    actions: ClassVar[ActionMode] = "clip"

    def make_networks(self, spec: EnvironmentSpec) -> BCNetworks:
        return make_networks(spec, self.config)

    def make_policy(
        self,
        networks: BCNetworks,
        spec: EnvironmentSpec,
        *,
        evaluation: bool = False,
        num_streams: int = 1,
    ) -> ActorCore:
        network, actions = networks

        def parameters(params, observation):
            return network.apply(params, jax.tree.map(lambda x: x[None], observation))[0]

        if evaluation:
            return policies.mode(parameters, actions)
        return policies.stochastic(parameters, actions)

    def make_update(self, networks: BCNetworks, spec: EnvironmentSpec) -> Update:
        return make_update(networks, self.config)
