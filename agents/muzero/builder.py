"""Builder of MuZero."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from ...environments.specs import EnvironmentSpec
from ..acting import policies
from ..builder import OffPolicyBuilder
from ..interfaces import ActorCore, Update
from ..networks.core import require_discrete
from ..replay.items import Item, Sequences
from .config import MuZeroConfig
from .networks import MuZeroNetworks, make_networks
from .search import make_search
from .update import make_update


class MuZeroBuilder(OffPolicyBuilder[MuZeroConfig, MuZeroNetworks]):
    """Gumbel MuZero, for one discrete action: it acts by search, and learns what searches find."""

    name = "muzero"
    config_class = MuZeroConfig
    honours_action_masks = True
    networks_observe = False

    def make_networks(self, spec: EnvironmentSpec) -> MuZeroNetworks:
        return make_networks(spec, self.config)

    def make_policy(
        self,
        networks: MuZeroNetworks,
        spec: EnvironmentSpec,
        *,
        evaluation: bool = False,
        num_streams: int = 1,
    ) -> ActorCore:
        search, stores = make_search(networks, self.config), not self.config.reanalyse
        # Noise is drawn where nothing is made of it, too: the policy keeps its key.
        scale = 0.0 if evaluation else 1.0

        def choose(params, observation, key):
            found = search(params, jax.tree.map(lambda x: x[None], observation), key, scale)
            return found.action[0], ({"policy": found.policy[0]} if stores else ())

        zeros = jnp.zeros(require_discrete(self.name, spec))
        return policies.drawn(choose, {"policy": zeros} if stores else ())

    def make_item(self, spec: EnvironmentSpec) -> Item:
        # One row more: what is bootstrapped from.
        return Sequences(self.config.sequence_length + 1, self.config.sequence_period)

    def make_update(self, networks: MuZeroNetworks, spec: EnvironmentSpec) -> Update:
        return make_update(networks, self.config)
