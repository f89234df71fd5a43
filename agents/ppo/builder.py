"""Builder of PPO."""

from __future__ import annotations

from typing import ClassVar

import jax

from ...environments.spaces import ActionMode
from ...environments.specs import EnvironmentSpec
from ..acting import policies
from ..builder import Builder
from ..interfaces import ActorCore, Update
from ..learning.normalization import Variables
from ..networks.recurrent import RecurrentNetwork
from ..replay.items import ReplaySpec, Rollouts
from .config import PPOConfig
from .networks import PPONetworks, make_networks
from .update import make_update


class PPOBuilder(Builder[PPOConfig, PPONetworks]):
    """Proximal policy optimisation, for actions of every kind."""

    name = "ppo"
    config_class = PPOConfig
    honours_action_masks = True
    # The log-probability is that of the action drawn; the bounds are the environment's affair.
    actions: ClassVar[ActionMode] = "clip"

    def make_networks(self, spec: EnvironmentSpec) -> PPONetworks:
        return make_networks(spec, self.config)

    def make_policy(
        self,
        networks: PPONetworks,
        spec: EnvironmentSpec,
        *,
        evaluation: bool = False,
        num_streams: int = 1,
    ) -> ActorCore:
        network, actions = networks

        def choose(parameters) -> ActorCore:
            if evaluation:
                return policies.mode(parameters, actions)
            return policies.stochastic(parameters, actions, stores_log_prob=True)

        if isinstance(network, RecurrentNetwork):

            def step(variables: Variables, observation, memory):
                observed = variables.observe(observation)
                (parameters, _), memory = network.step(variables.params, observed, memory)
                return parameters, memory

            found = choose(lambda params, parameters: parameters)
            return policies.recurrent(step, network.initial_state, found)

        def parameters(variables: Variables, observation):
            batch = jax.tree.map(lambda x: x[None], variables.observe(observation))
            return network.apply(variables.params, batch)[0][0]

        return choose(parameters)

    def make_replay_spec(self, spec: EnvironmentSpec) -> ReplaySpec:
        return ReplaySpec(
            item=Rollouts(self.config.rollout_length),
            batch_size=self.config.num_envs,
            max_size=2 * self.config.num_envs,
            min_size=self.config.num_envs,
        )

    def make_update(self, networks: PPONetworks, spec: EnvironmentSpec) -> Update:
        return make_update(networks, spec, self.config)
