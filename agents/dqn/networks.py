"""The Q-network of DQN."""

from __future__ import annotations

from typing import Any

import jax

from ...environments import action_masks
from ...environments.specs import EnvironmentSpec
from ..losses import estimates, values
from ..networks import heads
from ..networks.core import Network, dummy, from_haiku, require_discrete
from ..networks.torsos import is_image, make_torso
from .config import DQNConfig

Nest = Any


def make_estimate(config: DQNConfig) -> estimates.Estimate:
    """Returns the estimate of an action's return that the config names."""
    if config.distribution == "categorical":
        return estimates.categorical(config.min_return, config.max_return, config.num_atoms)
    if config.distribution == "quantile":
        return estimates.quantiles(config.num_atoms, config.huber_threshold)
    if config.loss == "huber":
        return estimates.mean(lambda error: values.huber(error, config.huber_threshold))
    return estimates.mean(values.squared)


def make_q_network(agent: str, spec: EnvironmentSpec, config: DQNConfig) -> Network:
    """Observations [B, ...] to values [B, A], or to [B, A, Z] of distributions.

    Raises:
      ValueError: where the environment's actions are not one discrete choice.
    """
    num_actions = require_discrete(agent, spec)
    shape, std = make_estimate(config).shape, config.noisy_std
    torso_sizes = config.hidden_sizes
    head_sizes: tuple[int, ...] = ()
    if config.dueling or std is not None:
        head_sizes = config.hidden_sizes[-1:]
        if not is_image(action_masks.visible(spec.observations)):
            torso_sizes = config.hidden_sizes[:-1]

    def apply(observation: Nest) -> jax.Array:
        features = make_torso(spec.observations, torso_sizes, torso=config.torso)(observation)
        head = heads.dueling_values if config.dueling else heads.action_values
        return head(features, num_actions, head_sizes, shape=shape, noisy_std=std)

    return from_haiku(apply, dummy(spec.observations, 1))
