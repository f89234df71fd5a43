"""R2D2's update."""

from __future__ import annotations

from typing import Any, NamedTuple

import dm_env
import jax
import jax.numpy as jnp
import optax

from .. import legal_actions
from ..interfaces import Update, UpdateOutput
from ..learning import blocks, optimizers, schedules, targets
from ..learning.descent import descend
from ..learning.prioritisation import Prioritisation
from ..losses import masks, returns, values
from ..networks.recurrent import RecurrentNetwork
from ..replay.items import Sample, Sequence
from .config import R2D2Config

Nest = Any


class R2D2State(NamedTuple):
    """All that learning changes."""

    params: Nest
    target_params: Nest
    optimizer: optax.OptState
    steps: jax.Array
    """Gradient steps taken, int32."""


def make_update(network: RecurrentNetwork, config: R2D2Config) -> Update:
    """Double Q-learning of n steps in replayed sequences (Kapturowski et al., 2019,
    https://openreview.net/forum?id=r1lyTjAqYX)."""
    rate = schedules.learning_rate(config)
    optimizer = optimizers.adam(rate, config.adam_epsilon)
    prioritisation = Prioritisation(config)

    def init(key):
        params = network.init(key)
        return R2D2State(
            params, targets.init(params), optimizer.init(params), jnp.zeros((), jnp.int32)
        )

    def rescale(x: jax.Array) -> jax.Array:
        return values.signed_hyperbolic(x) if config.value_rescaling else x

    def unscale(x: jax.Array) -> jax.Array:
        return values.signed_parabolic(x) if config.value_rescaling else x

    def unroll(params, data: Sequence) -> jax.Array:
        """Values [B, T, A], from the memory that the sequences began with."""
        memory = jax.tree.map(lambda x: x[:, 0], data.extras.memory)
        first = data.step_type == int(dm_env.StepType.FIRST)
        return network.unroll(params, data.observation, memory, first, config.burn_in)[0]

    def errors_of(q, q_target, data: Sequence):
        """Errors and which of them count, [T-1] each, of one sequence with values [T, A]."""
        following = _pick(q_target, legal_actions.best(q, legal_actions.of(data.observation)))
        target = returns.n_step_targets(
            data.reward[:-1],
            config.discount * data.discount[:-1],
            unscale(following),
            masks.learned_steps(data.step_type, data.mask)[:-1],
            config.n_step,
        )
        errors = jax.lax.stop_gradient(rescale(target)) - _pick(q, data.action)[:-1]
        return errors, masks.learned_steps(data.step_type, data.mask, config.burn_in)[:-1]

    def loss(params, q_target, data: Sequence, weights):
        q = unroll(params, data)
        errors, mask = jax.vmap(errors_of)(q, q_target, data)
        total = masks.mean(weights[:, None] * values.squared(errors), mask)
        mean_q = jnp.mean(q, axis=-1, where=legal_actions.of(data.observation))[:, :-1]
        return total, (errors, mask, masks.mean(mean_q, mask))

    def learn(state: R2D2State, sample: Sample, q_target: jax.Array):
        """A gradient step towards the target network's values [B, T, A]; the target stays."""
        descent = descend(
            loss,
            optimizer,
            state.params,
            state.optimizer,
            q_target,
            sample.data,
            prioritisation.weights(sample.info, state.steps),
            max_norm=config.max_gradient_norm,
        )
        errors, mask, mean_q = descent.aux
        metrics = {
            "loss": descent.loss,
            "mean_q": mean_q,
            "mean_absolute_error": masks.mean(jnp.abs(errors), mask),
            "gradient_norm": descent.gradient_norm,
        }
        state = R2D2State(descent.params, state.target_params, descent.optimizer, state.steps + 1)
        sizes = prioritisation.of_sequences(errors, mask, config.priority_mix)
        return state, UpdateOutput(metrics, sizes)

    def target_outputs(state: R2D2State, data: Sequence) -> jax.Array:
        return unroll(state.target_params, data)

    step, steps = blocks.towards_target(target_outputs, learn, config)
    return Update(init, step, lambda state: {"policy": state.params}, steps)


def _pick(q: jax.Array, actions: jax.Array) -> jax.Array:
    """The values [T] of actions [T], of [T, A]."""
    return jax.vmap(lambda row, action: row[action])(q, actions)
