"""How DQN learns."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from .. import schedules
from ..interfaces import Update, UpdateOutput
from ..networks import Network
from ..replay.items import Sample, Transition
from . import losses
from .config import DQNConfig

Nest = Any


class State(NamedTuple):
    """All that learning changes."""

    params: Nest
    target_params: Nest
    optimizer: optax.OptState
    steps: jax.Array
    """Gradient steps taken, int32."""


def make_update(network: Network, config: DQNConfig) -> Update:
    """Q-learning (Mnih et al., 2015) with the additions that the config turns on."""
    clip = optax.clip_by_global_norm(config.max_gradient_norm or jnp.inf)
    optimizer = optax.chain(
        clip if config.max_gradient_norm is not None else optax.identity(),
        optax.adam(
            config.learning_rate
            if config.learning_rate_steps is None
            else schedules.linear(config.learning_rate, 0.0, config.learning_rate_steps),
            eps=config.adam_epsilon,
        ),
    )
    importance = schedules.linear(config.importance_exponent, 1.0, config.importance_exponent_steps)
    prioritised = config.priority_exponent is not None

    def init(key):
        params = network.init(key)
        # A copy: a donated state may hold no buffer twice.
        target_params = jax.tree.map(jnp.copy, params)
        return State(params, target_params, optimizer.init(params), jnp.zeros((), jnp.int32))

    def loss(params, target_params, transition: Transition, weights):
        q_tm1 = network.apply(params, transition.observation)
        q_t_target = network.apply(target_params, transition.next_observation)
        q_t_selector = q_t_target
        if config.double:
            q_t_selector = network.apply(params, transition.next_observation)
        errors = jax.vmap(losses.q_learning_error)(
            q_tm1,
            transition.action,
            transition.reward,
            config.discount * transition.discount,
            q_t_target,
            q_t_selector,
        )
        if config.loss == "huber":
            each = losses.huber(errors, config.huber_threshold)
        else:
            each = losses.squared(errors)
        return jnp.mean(weights * each), (errors, jnp.mean(q_tm1))

    def step(state: State, sample: Sample):
        if prioritised:
            weights = losses.importance_weights(
                sample.info.probabilities, sample.info.size, importance(state.steps)
            )
        else:
            weights = jnp.ones_like(sample.data.reward)
        (value, (errors, mean_q)), gradients = jax.value_and_grad(loss, has_aux=True)(
            state.params, state.target_params, sample.data, weights
        )
        updates, opt_state = optimizer.update(gradients, state.optimizer, state.params)
        params = optax.apply_updates(state.params, updates)
        steps = state.steps + 1
        rate = jnp.where(steps % config.target_update_period == 0, config.target_update_rate, 0.0)
        target_params = optax.incremental_update(params, state.target_params, rate)
        metrics = {
            "loss": value,
            "mean_q": mean_q,
            "mean_absolute_error": jnp.mean(jnp.abs(errors)),
            "gradient_norm": optax.tree.norm(gradients),
        }
        # The constant keeps every item in reach (Schaul et al., 2016, section 3.3).
        priorities = jnp.abs(errors) + 1e-6 if prioritised else None
        return State(params, target_params, opt_state, steps), UpdateOutput(metrics, priorities)

    return Update(init, step, lambda state: {"policy": state.params})
