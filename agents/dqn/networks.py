"""The Q-network of DQN."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from ...environments.specs import EnvironmentSpec
from ..networks.core import (
    MLP,
    Linear,
    Network,
    dummy,
    from_haiku,
    is_image,
    make_torso,
    require_discrete,
)
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
    head_size = config.hidden_sizes[-1:]

    def q_values(observation: Nest) -> jax.Array:
        features = make_torso(spec.observations, torso_sizes)(observation)
        if not config.dueling:
            return Linear(num_actions, name="head")(features)
        # Wang et al. (2016), https://arxiv.org/abs/1511.06581, equation 9.
        value = MLP((*head_size, 1), name="value")(features)
        advantage = MLP((*head_size, num_actions), name="advantage")(features)
        return value + advantage - jnp.mean(advantage, axis=-1, keepdims=True)

    return from_haiku(q_values, dummy(spec.observations, 1))
