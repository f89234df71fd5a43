"""DQN, said once."""

from __future__ import annotations

import jax

from ...environments.specs import EnvironmentSpec
from ..acting import policies
from ..builder import OffPolicyBuilder
from ..interfaces import ActorCore, Update
from ..learning import schedules
from ..networks.core import Network
from .config import DQNConfig
from .networks import make_q_network
from .update import make_update


class DQNBuilder(OffPolicyBuilder[DQNConfig, Network]):
    """Deep Q-networks for one discrete action."""

    name = "dqn"
    config_class = DQNConfig

    def make_networks(self, spec: EnvironmentSpec) -> Network:
        return make_q_network(spec, self.config)

    def make_policy(
        self,
        networks: Network,
        spec: EnvironmentSpec,
        *,
        evaluation: bool = False,
        num_streams: int = 1,
    ) -> ActorCore:
        def q_values(params, observation):
            return networks.apply(params, jax.tree.map(lambda x: x[None], observation))[0]

        if evaluation:
            return policies.epsilon_greedy(q_values, self.config.evaluation_epsilon)
        config = self.config
        steps = config.epsilon_decay_steps / num_streams
        return policies.epsilon_greedy(
            q_values, schedules.linear(config.epsilon_start, config.epsilon_end, steps)
        )

    def make_update(self, networks: Network, spec: EnvironmentSpec) -> Update:
        return make_update(networks, self.config)
