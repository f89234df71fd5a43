"""Policies apart from any critic: observations to actions, or to a distribution over them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from dm_env import specs

from ...environments.specs import EnvironmentSpec
from .. import legal_actions
from . import heads
from .core import Network, dummy, from_haiku
from .distributions import Distribution
from .torsos import make_torso

Nest = Any


def make_stochastic_policy(
    spec: EnvironmentSpec,
    actions: Distribution,
    hidden_sizes: Sequence[int],
    *,
    initial_log_std: float = 0.0,
    least_log_std: float | None = None,
    torso: str = "auto",
) -> Network:
    """Observations [B, ...] to parameters [B, P] of a distribution over actions; of choices, over
    those that are legal.

    Args:
      spec: of the environment.
      actions: the family; at first it is near the same everywhere.
      hidden_sizes: units of the MLP's hidden layers; images go through the Nature network.
      initial_log_std: of a family whose standard deviations do not depend on the observation.
      least_log_std: lower bound of these; None: none.
      torso: as `torsos.make_torso` takes it.
    """

    def parameters(observation: Nest) -> jax.Array:
        features = make_torso(spec.observations, hidden_sizes, torso=torso)(observation)
        found = heads.action_parameters(features, actions, scale=0.01, initial_free=initial_log_std)
        if not actions.free_parameters or least_log_std is None:
            return found
        means, log_std = jnp.split(found, [actions.num_parameters], axis=-1)
        return jnp.concatenate([means, jnp.maximum(log_std, least_log_std)], axis=-1)

    return legal_actions.policy_outputs(from_haiku(parameters, dummy(spec.observations, 1)))


def make_deterministic_policy(
    spec: EnvironmentSpec,
    box: specs.BoundedArray,
    hidden_sizes: Sequence[int],
    *,
    torso: str = "auto",
) -> Network:
    """Observations [B, ...] to actions [B, ...] of a box, which `core.require_box` gives."""

    def action(observation: Nest) -> jax.Array:
        features = make_torso(spec.observations, hidden_sizes, torso=torso)(observation)
        return heads.bounded_actions(features, box)

    return from_haiku(action, dummy(spec.observations, 1))
