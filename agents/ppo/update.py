"""PPO's update: epochs of shuffled minibatches over one batch of rollouts, in one step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import dm_env
import jax
import jax.numpy as jnp
import optax

from ...environments.specs import EnvironmentSpec
from .. import leading_axes
from ..interfaces import Update, UpdateOutput
from ..learning import normalization, optimizers, schedules
from ..learning.descent import descend
from ..learning.normalization import Variables
from ..losses import masks, policy, returns
from ..networks.recurrent import RecurrentNetwork
from ..replay.items import Sample, Sequence
from .config import PPOConfig
from .networks import PPONetworks

Nest = Any


class PPOState(NamedTuple):
    """All that learning changes."""

    variables: Variables
    optimizer: optax.OptState
    key: jax.Array
    steps: jax.Array
    """Updates done, int32."""


class MinibatchRows(NamedTuple):
    """Rows of a batch, [M, ...], in any order; with a core its rollouts, [B, T, ...]."""

    observation: Nest
    action: Nest
    log_prob: jax.Array
    advantage: jax.Array
    value_target: jax.Array
    mask: jax.Array
    memory: Nest = ()
    """[B, ...] that each rollout begins with."""
    first: Any = ()
    """[B, T] where an episode begins."""


def make_update(networks: PPONetworks, spec: EnvironmentSpec, config: PPOConfig) -> Update:
    """Proximal policy optimisation (Schulman et al., 2017)."""
    network, actions = networks
    is_recurrent = isinstance(network, RecurrentNetwork)
    steps_per_update = config.num_envs * config.rollout_length
    optimizer = optimizers.scale_by_adam(epsilon=config.adam_epsilon)
    rate = schedules.learning_rate(config)

    def remaining(steps: jax.Array) -> jax.Array:
        """From 1 down to 0 in the course of the annealing; 1 without one."""
        if config.anneal_steps is None:
            return jnp.ones(())
        return jnp.maximum(1.0 - steps * steps_per_update / config.anneal_steps, 0.0)

    def init(key):
        key, params_key = jax.random.split(key)
        params = network.init(params_key)
        statistics = None
        if config.normalize_observations:
            statistics = normalization.init(spec.observations)
        variables = Variables(params, statistics)
        return PPOState(variables, optimizer.init(params), key, jnp.zeros((), jnp.int32))

    def evaluate(params, rows: MinibatchRows) -> tuple[jax.Array, jax.Array]:
        """Action parameters and value of every row."""
        if isinstance(network, RecurrentNetwork):
            return network.unroll(params, rows.observation, rows.memory, rows.first)[0]
        return network.apply(params, rows.observation)

    def of_each(function: Callable[..., jax.Array]) -> Callable[..., jax.Array]:
        """A function of one row as one of all."""
        return jax.vmap(jax.vmap(function)) if is_recurrent else jax.vmap(function)

    def loss(params, rows: MinibatchRows, clip):
        parameters, value = evaluate(params, rows)
        log_prob = of_each(actions.log_prob)(parameters, rows.action)
        advantage = rows.advantage
        if config.normalize_advantages:
            advantage = masks.normalize(advantage, rows.mask)
        surrogate = policy.clipped_surrogate(log_prob, rows.log_prob, advantage, clip)
        policy_loss = masks.mean(surrogate, rows.mask)
        value_loss = masks.mean((value - rows.value_target) ** 2, rows.mask)
        entropy = masks.mean(of_each(actions.entropy)(parameters), rows.mask)
        total = policy_loss + config.value_cost * value_loss - config.entropy_cost * entropy
        metrics = {
            "policy_loss": policy_loss,
            "value_loss": value_loss,
            "entropy": entropy,
            "kl": masks.mean(policy.kl_estimate(log_prob, rows.log_prob), rows.mask),
        }
        return total, metrics

    def prepare(variables: Variables, data: Sequence) -> MinibatchRows:
        """Advantages and value targets, with the parameters that acted."""
        observation = variables.observe(data.observation)
        extras, memory, first = data.extras, (), ()
        if isinstance(network, RecurrentNetwork):
            memory = jax.tree.map(lambda x: x[:, 0], extras.memory)
            first = data.step_type == int(dm_env.StepType.FIRST)
            extras = extras.choice
            values = network.unroll(variables.params, observation, memory, first)[0][1]
            first = first[:, :-1]
        else:
            flat = leading_axes.merge(observation)
            values = network.apply(variables.params, flat)[1].reshape(data.mask.shape)
        is_step = data.mask * (data.step_type != int(dm_env.StepType.LAST))
        advantages = jax.vmap(returns.generalized_advantages, in_axes=(0, 0, 0, 0, None))(
            data.reward[:, :-1],
            config.discount * data.discount[:, :-1],
            values,
            is_step[:, :-1],
            config.gae_lambda,
        )
        rows = MinibatchRows(
            jax.tree.map(lambda x: x[:, :-1], observation),
            jax.tree.map(lambda x: x[:, :-1], data.action),
            extras["log_prob"][:, :-1],
            advantages,
            advantages + values[:, :-1],
            is_step[:, :-1],
        )
        if is_recurrent:
            return rows._replace(memory=memory, first=first)
        return leading_axes.merge(rows)

    def step(state: PPOState, sample: Sample):
        variables, data = state.variables, sample.data
        rows = prepare(variables, data)
        part = remaining(state.steps)
        size = rows.mask.shape[0]

        def minibatch(carry, minibatch_rows):
            params, opt_state, goes_on = carry
            descent = descend(
                loss,
                optimizer,
                params,
                opt_state,
                minibatch_rows,
                part * config.clip,
                max_norm=config.max_gradient_norm,
                step_size=part * (rate(opt_state.count) if callable(rate) else rate),
            )
            learned, metrics = (descent.params, descent.optimizer), descent.aux
            if config.target_kl is not None:
                goes_on &= metrics["kl"] <= 1.5 * config.target_kl
                # Not left out, but undone: so it is one program, which can be spread and fused.
                learned = jax.tree.map(
                    lambda new, old: jnp.where(goes_on, new, old), learned, (params, opt_state)
                )
                metrics["left_out"] = 1.0 - goes_on
            return (*learned, goes_on), metrics

        def epoch(carry, key):
            if config.num_minibatches == 1:  # There is nothing to shuffle.
                return minibatch(carry, rows)
            order = jax.random.permutation(key, size).reshape(config.num_minibatches, -1)
            shuffled = jax.tree.map(lambda x: x[order], rows)
            carry, metrics = jax.lax.scan(minibatch, carry, shuffled)
            return carry, jax.tree.map(jnp.mean, metrics)

        key, epochs_key = jax.random.split(state.key)
        goes_on = None if config.target_kl is None else jnp.ones((), bool)
        (params, opt_state, _), metrics = jax.lax.scan(
            epoch,
            (variables.params, state.optimizer, goes_on),
            jax.random.split(epochs_key, config.num_epochs),
        )
        observed = jax.tree.map(lambda x: x[:, :-1], data.observation)
        variables = variables.learned(params, observed, data.mask[:, :-1])
        state = PPOState(variables, opt_state, key, state.steps + 1)
        return state, UpdateOutput(jax.tree.map(lambda x: x[-1], metrics))

    return Update(init, step, lambda state: {"policy": state.variables})
