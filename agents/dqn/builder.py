"""Builder of DQN, and names for combinations of its options."""

from __future__ import annotations

import jax

from ...environments.specs import EnvironmentSpec
from ..acting import policies
from ..builder import OffPolicyBuilder
from ..interfaces import ActorCore, Update
from ..learning import schedules
from ..networks.core import Network
from .config import C51Config, DQNConfig, QRDQNConfig, RainbowConfig
from .networks import make_estimate, make_q_network
from .update import make_update


class DQNBuilder(OffPolicyBuilder[DQNConfig, Network]):
    """Deep Q-networks for one discrete action."""

    name = "dqn"
    config_class = DQNConfig
    honours_action_masks = True

    def make_networks(self, spec: EnvironmentSpec) -> Network:
        return make_q_network(self.name, spec, self.config)

    def make_policy(
        self,
        networks: Network,
        spec: EnvironmentSpec,
        *,
        evaluation: bool = False,
        num_streams: int = 1,
    ) -> ActorCore:
        config, estimate = self.config, make_estimate(self.config)

        def q_values(params, observation, key=None):
            batch = jax.tree.map(lambda x: x[None], observation)
            return estimate.mean(networks.apply(params, batch, key=key)[0])

        if evaluation:  # Without noise.
            return policies.epsilon_greedy(q_values, config.evaluation_epsilon)
        steps = config.epsilon_decay_steps / num_streams
        return policies.epsilon_greedy(
            q_values,
            schedules.linear(config.epsilon_start, config.epsilon_end, steps),
            is_noisy=config.noisy_std is not None,
        )

    def make_update(self, networks: Network, spec: EnvironmentSpec) -> Update:
        return make_update(networks, self.config)


class C51Builder(DQNBuilder):
    """Categorical DQN."""

    name = "c51"
    config_class = C51Config


class QRDQNBuilder(DQNBuilder):
    """Quantile regression DQN."""

    name = "qrdqn"
    config_class = QRDQNConfig


class RainbowBuilder(DQNBuilder):
    """Rainbow: categorical, dueling, double, n-step, prioritised and noisy."""

    name = "rainbow"
    config_class = RainbowConfig
