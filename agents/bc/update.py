"""BC's update: it makes the actions of the data likely."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from ...environments.specs import EnvironmentSpec
from .. import action_spaces
from ..interfaces import Update, UpdateOutput
from ..learning import optimizers, schedules
from ..learning.descent import descend
from ..replay.items import Sample, Transition
from .config import BCConfig
from .networks import BCNetworks

Nest = Any


class BCState(NamedTuple):
    """All that learning changes."""

    params: Nest
    optimizer: optax.OptState


def make_update(networks: BCNetworks, spec: EnvironmentSpec, config: BCConfig) -> Update:
    """Maximum likelihood of the data's actions: Pomerleau (1988), "ALVINN: an autonomous land
    vehicle in a neural network"."""
    policy, actions = networks
    rate = schedules.learning_rate(config)
    optimizer = optimizers.adam(rate, config.adam_epsilon)

    def init(key):
        params = policy.init(key)
        return BCState(params, optimizer.init(params))

    def loss(params, data: Transition):
        parameters = policy.apply(params, data.observation)
        log_prob = jnp.mean(jax.vmap(actions.log_prob)(parameters, data.action))
        entropy = jnp.mean(jax.vmap(actions.entropy)(parameters))
        mode = jax.vmap(actions.mode)(parameters)
        error = action_spaces.error(spec.actions, mode, data.action)
        metrics = {"log_prob": log_prob, "entropy": entropy, "error": error}
        return -log_prob - config.entropy_cost * entropy, metrics

    def step(state: BCState, sample: Sample):
        descent = descend(
            loss,
            optimizer,
            state.params,
            state.optimizer,
            sample.data,
            max_norm=config.max_gradient_norm,
        )
        metrics = {
            **descent.aux,
            "loss": descent.loss,
            "gradient_norm": descent.gradient_norm,
        }
        return BCState(descent.params, descent.optimizer), UpdateOutput(metrics)

    return Update(init, step, lambda state: {"policy": state.params})
