"""How DQN learns."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from ..interfaces import Update, UpdateOutput
from ..learning import dispatch, optimizers, schedules, targets
from ..learning.descent import descend
from ..losses import priorities, values
from ..networks.core import Network
from ..replay.items import Sample, Transition
from .config import DQNConfig

Nest = Any


class DQNState(NamedTuple):
    """All that learning changes."""

    params: Nest
    target_params: Nest
    optimizer: optax.OptState
    steps: jax.Array
    """Gradient steps taken, int32."""


def make_update(network: Network, config: DQNConfig) -> Update:
    """Q-learning (Mnih et al., 2015) with the additions that the config turns on."""
    optimizer = optimizers.adam(
        config.learning_rate
        if config.learning_rate_steps is None
        else schedules.linear(config.learning_rate, 0.0, config.learning_rate_steps),
        epsilon=config.adam_epsilon,
    )
    importance = schedules.linear(config.importance_exponent, 1.0, config.importance_exponent_steps)
    prioritised = config.priority_exponent is not None
    period = config.target_update_period

    def init(key):
        params = network.init(key)
        return DQNState(
            params, targets.init(params), optimizer.init(params), jnp.zeros((), jnp.int32)
        )

    def loss(params, q_t_target, transition: Transition, weights):
        q_tm1 = network.apply(params, transition.observation)
        q_t_selector = q_t_target
        if config.double:
            q_t_selector = network.apply(params, transition.next_observation)
        errors = jax.vmap(values.q_learning_error)(
            q_tm1,
            transition.action,
            transition.reward,
            config.discount * transition.discount,
            q_t_target,
            q_t_selector,
        )
        if config.loss == "huber":
            each = values.huber(errors, config.huber_threshold)
        else:
            each = values.squared(errors)
        return jnp.mean(weights * each), (errors, jnp.mean(q_tm1))

    def learn(state: DQNState, sample: Sample, q_t_target: jax.Array):
        """A gradient step towards the target network's values [B, A]; the target stays."""
        weights = jnp.ones_like(sample.data.reward)
        if prioritised:
            weights = priorities.importance_weights(
                sample.info.probabilities, sample.info.size, importance(state.steps)
            )
        descent = descend(
            loss,
            optimizer,
            state.params,
            state.optimizer,
            q_t_target,
            sample.data,
            weights,
            max_norm=config.max_gradient_norm,
        )
        errors, mean_q = descent.aux
        metrics = {
            "loss": descent.loss,
            "mean_q": mean_q,
            "mean_absolute_error": jnp.mean(jnp.abs(errors)),
            "gradient_norm": descent.gradient_norm,
        }
        state = DQNState(descent.params, state.target_params, descent.optimizer, state.steps + 1)
        return state, UpdateOutput(metrics, priorities.from_errors(errors) if prioritised else None)

    def move_target(state: DQNState, num_steps: int) -> DQNState:
        """Updates the target network if one of the last `num_steps` steps was its turn."""
        target_params = targets.periodic(
            state.target_params,
            state.params,
            state.steps,
            period,
            rate=config.target_update_rate,
            num_steps=num_steps,
        )
        return state._replace(target_params=target_params)

    def step(state: DQNState, sample: Sample):
        q_t_target = network.apply(state.target_params, sample.data.next_observation)
        state, output = learn(state, sample, q_t_target)
        return move_target(state, 1), output

    def steps(num_steps: int):
        """Steps in lots between which the target network may change, and in which it does not.

        What it says of all batches of a lot is one product, and it is moved once. Of 64 x 256 x
        256 products, lots of 128 make 600 us a gradient step of 662 (two cores, jax 0.6.2).
        """
        lot = math.gcd(num_steps, period)
        if lot == 1:
            return dispatch.fuse(step, num_steps)
        learn_lot = dispatch.fuse(lambda state, batch: learn(state, *batch), lot)

        def step_lot(state: DQNState, samples: Sample):
            following = samples.data.next_observation
            values = network.apply(state.target_params, jax.tree.map(_merge, following))
            values = values.reshape(lot, -1, *values.shape[1:])
            state, output = learn_lot(state, (samples, values))
            return move_target(state, lot), output

        step_lots = dispatch.fuse(step_lot, num_steps // lot)

        def run(state: DQNState, samples: Sample):
            lots = jax.tree.map(lambda x: x.reshape(-1, lot, *x.shape[1:]), samples)
            state, output = step_lots(state, lots)
            return state, jax.tree.map(_merge, output)

        return run

    return Update(init, step, lambda state: {"policy": state.params}, steps)


def _merge(x: jax.Array) -> jax.Array:
    """[M, N, ...] to [M N, ...]."""
    return x.reshape(-1, *x.shape[2:])
