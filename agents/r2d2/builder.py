"""Builder of R2D2."""

from __future__ import annotations

from ...environments import action_masks
from ...environments.specs import EnvironmentSpec
from .. import legal_actions
from ..acting import policies
from ..builder import OffPolicyBuilder
from ..interfaces import ActorCore, Update
from ..learning import schedules
from ..networks import assembly, heads
from ..networks.core import require_discrete
from ..networks.recurrent import RecurrentNetwork
from ..replay.items import Item, Sequences
from .config import R2D2Config
from .update import make_update


class R2D2Builder(OffPolicyBuilder[R2D2Config, RecurrentNetwork]):
    """Recurrent replay distributed DQN, for one discrete action."""

    name = "r2d2"
    config_class = R2D2Config
    honours_action_masks = True

    def make_networks(self, spec: EnvironmentSpec) -> RecurrentNetwork:
        num_actions, sizes = require_discrete(self.name, spec), self.config.hidden_sizes[-1:]
        return assembly.make_network(
            spec.observations,
            self.config,
            lambda features: heads.dueling_values(features, num_actions, sizes),
        )

    def make_policy(
        self,
        networks: RecurrentNetwork,
        spec: EnvironmentSpec,
        *,
        evaluation: bool = False,
        num_streams: int = 1,
    ) -> ActorCore:
        config = self.config

        def epsilon(count, stream):
            power = 1.0 + config.epsilon_exponent * stream / max(num_streams - 1, 1)
            steps = config.epsilon_decay_steps / num_streams
            return schedules.linear(config.epsilon_start, config.epsilon_end**power, steps)(count)

        def step(params, observation, memory):
            q_values, memory = networks.step(params, observation, memory)
            return legal_actions.beside(q_values, observation), memory

        choose = policies.epsilon_greedy(
            lambda params, given: action_masks.visible(given),
            config.evaluation_epsilon if evaluation else epsilon,
            by_stream=not evaluation,
        )
        return policies.recurrent(step, networks.initial_state, choose)

    def make_item(self, spec: EnvironmentSpec) -> Item:
        # One row more: what is bootstrapped from.
        config = self.config
        return Sequences(config.burn_in + config.sequence_length + 1, config.sequence_period)

    def make_update(self, networks: RecurrentNetwork, spec: EnvironmentSpec) -> Update:
        return make_update(networks, self.config)
