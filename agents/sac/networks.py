"""Policy and critics of SAC."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax

from ...environments.specs import EnvironmentSpec
from ..configs import MemoryConfig
from ..networks import critics, heads
from ..networks.core import Network, require_box, require_discrete
from ..networks.distributions import Distribution, categorical, tanh_gaussian
from ..networks.policies import make_stochastic_policy
from ..networks.torsos import make_torso
from ..networks.windows import WindowPolicy
from ..networks.windows import make_policy as make_recurrent_policy
from .config import SoftConfig

Nest = Any


class SACNetworks(NamedTuple):
    """Networks that SAC learns.

    Of discrete actions the critics give the values [E, B, A] of all of them, and are applied to
    observations alone.
    """

    policy: Network | WindowPolicy
    """`apply(params, observation [B, ...])` gives action parameters [B, P]; with a core,
    observations are an `ObservedWindow` and its rows are B here and below."""
    critic: Network
    """`apply(params, observation [B, ...], action [B, ...])` gives values [E, B]; logits [..., Z]
    where critic_loss is categorical."""
    actions: Distribution

    def draw(self, params: Nest, observation: Nest, key: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Actions [B, ...] of the policy and their log-probabilities [B]."""
        parameters = self.policy.apply(params, observation)
        keys = jax.random.split(key, parameters.shape[0])
        return jax.vmap(self.actions.sample_and_log_prob)(parameters, keys)


def make_discrete_networks(spec: EnvironmentSpec, config: SoftConfig) -> SACNetworks:
    """Networks likewise, for one discrete action."""
    actions = categorical(require_discrete("sac", spec))
    num_actions, options = actions.num_parameters, _options(config)
    if isinstance(config, MemoryConfig) and config.is_recurrent:
        critic = critics.of_windows(spec, config, num_actions=num_actions, **options)
        return SACNetworks(_recurrent_policy(spec, config, actions), critic, actions)
    return SACNetworks(
        make_stochastic_policy(spec, actions, config.hidden_sizes, torso=config.torso),
        critics.of_every_action(spec, config, num_actions, **options),
        actions,
    )


def make_networks(agent: str, spec: EnvironmentSpec, config: SoftConfig) -> SACNetworks:
    """MLPs, with the Nature network before them on images, each with its own.

    Args:
      agent: whose they are, for the message.
      spec: of the environment.
      config: their sizes.

    Raises:
      ValueError: where actions are not real numbers between finite bounds.
    """
    box = require_box(agent, spec)
    actions = tanh_gaussian(box.minimum, box.maximum)
    if isinstance(config, MemoryConfig) and config.is_recurrent:
        critic = critics.of_windows(spec, config, **_options(config))
        return SACNetworks(_recurrent_policy(spec, config, actions), critic, actions)
    return SACNetworks(
        make_stochastic_policy(spec, actions, config.hidden_sizes, torso=config.torso),
        critics.of_config(spec, config, **_options(config)),
        actions,
    )


def _options(config: SoftConfig) -> dict[str, Any]:
    return {"size": config.num_critics, "dropout": config.critic_dropout}


def _recurrent_policy(spec: EnvironmentSpec, config: Any, actions: Distribution) -> WindowPolicy:
    return make_recurrent_policy(
        spec,
        config,
        make_torso(spec.observations, config.hidden_sizes, torso=config.torso),
        lambda features: heads.action_parameters(features, actions, scale=0.01, initial_free=0.0),
    )
