"""The Q-network of DQN."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax

from ...environments.specs import EnvironmentSpec
from ..networks import heads
from ..networks.columns import Linear
from ..networks.core import Network, dummy, from_haiku, require_discrete
from ..networks.noisy import NoisyLinear
from ..networks.torsos import is_image, make_torso
from . import estimates
from .config import DQNConfig

Nest = Any


def make_q_network(agent: str, spec: EnvironmentSpec, config: DQNConfig) -> Network:
    """Observations [B, ...] to values [B, A], or to [B, A, Z] of distributions.

    Raises:
      ValueError: where the environment's actions are not one discrete choice.
    """
    num_actions = require_discrete(agent, spec)
    shape = estimates.make(config).shape
    is_noisy, linear = config.noisy_std is not None, _linear(config)
    torso_sizes = config.hidden_sizes
    head_sizes: tuple[int, ...] = ()
    if config.dueling or is_noisy:
        head_sizes = config.hidden_sizes[-1:]
        if not is_image(spec.observations):
            torso_sizes = config.hidden_sizes[:-1]

    def values(observation: Nest) -> jax.Array:
        features = make_torso(spec.observations, torso_sizes)(observation)
        head = heads.dueling_values if config.dueling else heads.action_values
        return head(features, num_actions, head_sizes, shape=shape, linear=linear)

    return from_haiku(values, dummy(spec.observations, 1))


def _linear(config: DQNConfig) -> Callable[..., Linear]:
    """Makes the layers behind the torso."""
    if config.noisy_std is None:
        return Linear
    return functools.partial(NoisyLinear, std=config.noisy_std)
