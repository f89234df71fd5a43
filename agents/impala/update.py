"""IMPALA's update: an actor-critic step on windows that an older policy acted in."""

from __future__ import annotations

from typing import Any, NamedTuple

import dm_env
import jax
import optax

from ..interfaces import Update, UpdateOutput
from ..learning import optimizers, schedules
from ..learning.descent import descend
from ..losses import masks, policy, returns
from ..networks.distributions import Distribution
from ..networks.recurrent import RecurrentNetwork
from ..replay.items import Sample, Sequence
from .config import IMPALAConfig

Nest = Any


class IMPALANetworks(NamedTuple):
    """A network whose outputs are (action parameters [..., P], value [...])."""

    network: RecurrentNetwork
    actions: Distribution


class IMPALAState(NamedTuple):
    """All that learning changes."""

    params: Nest
    optimizer: optax.OptState


def make_update(networks: IMPALANetworks, config: IMPALAConfig) -> Update:
    """Actor-critic learning with V-trace (Espeholt et al., 2018).

    Losses are means over the steps of a batch, where the publication has sums: what it says of
    gradients holds with those over the number of steps.
    """
    network, actions = networks
    optimizer = _make_optimizer(config)

    def init(key):
        params = network.init(key)
        return IMPALAState(params, optimizer.init(params))

    def loss(params, data: Sequence):
        is_step = data.mask * (data.step_type != int(dm_env.StepType.LAST))
        memory = jax.tree.map(lambda x: x[:, 0], data.extras.memory)
        first = data.step_type == int(dm_env.StepType.FIRST)
        (parameters, values), _ = network.unroll(params, data.observation, memory, first)
        # The last row is there to be bootstrapped from.
        parameters, taken, is_step = jax.tree.map(
            lambda x: x[:, :-1], (parameters, data.action, is_step)
        )
        log_prob = jax.vmap(jax.vmap(actions.log_prob))(parameters, taken)
        old_log_prob = data.extras.choice["log_prob"][:, :-1]
        goal = jax.vmap(returns.vtrace, in_axes=(0, 0, 0, 0, 0, None, None))(
            log_prob - old_log_prob,
            data.reward[:, :-1],
            config.discount * data.discount[:, :-1],
            values,
            is_step,
            config.vtrace_lambda,
            config.clip_ratio,
        )
        policy_loss = masks.mean(-goal.advantages * log_prob, is_step)
        value_loss = masks.mean((values[:, :-1] - goal.targets) ** 2, is_step)
        entropy = masks.mean(jax.vmap(jax.vmap(actions.entropy))(parameters), is_step)
        total = policy_loss + config.value_cost * value_loss - config.entropy_cost * entropy
        metrics = {
            "policy_loss": policy_loss,
            "value_loss": value_loss,
            "entropy": entropy,
            "kl": masks.mean(policy.kl_estimate(log_prob, old_log_prob), is_step),
        }
        return total, metrics

    def step(state: IMPALAState, sample: Sample):
        def learn(state: IMPALAState, _: None):
            descent = descend(
                loss,
                optimizer,
                state.params,
                state.optimizer,
                sample.data,
                max_norm=config.max_gradient_norm,
            )
            metrics = {**descent.aux, "gradient_norm": descent.gradient_norm}
            return IMPALAState(descent.params, descent.optimizer), metrics

        if config.num_passes == 1:
            state, metrics = learn(state, None)
            return state, UpdateOutput(metrics)
        state, metrics = jax.lax.scan(learn, state, length=config.num_passes)
        return state, UpdateOutput(jax.tree.map(lambda x: x[-1], metrics))

    return Update(init, step, lambda state: {"policy": state.params})


def _make_optimizer(config: IMPALAConfig) -> optax.GradientTransformation:
    rate: Any = schedules.learning_rate(config)
    if config.anneal_steps is not None:
        # Gradient steps in as many actor steps.
        steps = config.anneal_steps * config.num_passes
        rate = schedules.linear(
            config.learning_rate, 0.0, steps / (config.batch_size * config.rollout_length)
        )
    if config.optimizer == "adam":
        return optimizers.adam(rate, epsilon=config.adam_epsilon)
    return optax.rmsprop(rate, decay=config.rmsprop_decay, eps=config.rmsprop_epsilon)
