"""Builder of IMPALA."""

from __future__ import annotations

from typing import ClassVar

from ...environments.spaces import ActionMode
from ...environments.specs import EnvironmentSpec
from .. import legal_actions
from ..acting import policies
from ..builder import Builder
from ..interfaces import ActorCore, Update
from ..networks import assembly
from ..networks.distributions import for_actions
from ..networks.recurrent import make_recurrent
from ..replay.items import ReplaySpec, Rollouts
from .config import IMPALAConfig
from .update import IMPALANetworks, make_update


class IMPALABuilder(Builder[IMPALAConfig, IMPALANetworks]):
    """Actors that go on while the learner learns, which corrects for how far it went meanwhile.

    For actions of every kind, with a memory or without one.
    """

    name = "impala"
    config_class = IMPALAConfig
    honours_action_masks = True
    # The log-probability is that of the action drawn; the bounds are the environment's affair.
    actions: ClassVar[ActionMode] = "clip"

    def make_networks(self, spec: EnvironmentSpec) -> IMPALANetworks:
        actions = for_actions("impala", spec.actions)
        torso, head = assembly.actor_critic(
            spec, self.config, actions, initial_free=self.config.initial_log_std
        )
        core = assembly.make_core(self.config)
        network = make_recurrent(spec.observations, torso, core, head)
        return IMPALANetworks(legal_actions.recurrent_policy_outputs(network), actions)

    def make_policy(
        self,
        networks: IMPALANetworks,
        spec: EnvironmentSpec,
        *,
        evaluation: bool = False,
        num_streams: int = 1,
    ) -> ActorCore:
        network, actions = networks

        def parameters(params, observation, memory):
            (parameters, _), memory = network.step(params, observation, memory)
            return parameters, memory

        def given(params, parameters):
            return parameters

        if evaluation:
            choose = policies.mode(given, actions)
        else:
            choose = policies.stochastic(given, actions, stores_log_prob=True)
        return policies.recurrent(parameters, network.initial_state, choose)

    def make_replay_spec(self, spec: EnvironmentSpec) -> ReplaySpec:
        size = self.config.batch_size
        return ReplaySpec(Rollouts(self.config.rollout_length), size, max_size=2 * size)

    def make_update(self, networks: IMPALANetworks, spec: EnvironmentSpec) -> Update:
        return make_update(networks, self.config)
