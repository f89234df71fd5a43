"""The Q-network of DQN."""

from __future__ import annotations

from typing import Any

import jax

from ...environments.specs import EnvironmentSpec
from ..networks import heads
from ..networks.core import Network, dummy, from_haiku, require_discrete
from ..networks.torsos import is_image, make_torso
from .config import DQNConfig

Nest = Any


def make_q_network(spec: EnvironmentSpec, config: DQNConfig) -> Network:
    """Observations [B, ...] to values [B, A].

    Raises:
      ValueError: where the environment's actions are not one discrete choice.
    """
    num_actions = require_discrete("dqn", spec)
    torso_sizes = config.hidden_sizes
    if config.dueling and not is_image(spec.observations):
        torso_sizes = config.hidden_sizes[:-1]

    def q_values(observation: Nest) -> jax.Array:
        features = make_torso(spec.observations, torso_sizes)(observation)
        if config.dueling:
            return heads.dueling_values(features, num_actions, config.hidden_sizes[-1:])
        return heads.action_values(features, num_actions)

    return from_haiku(q_values, dummy(spec.observations, 1))
