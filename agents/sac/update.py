"""SAC's update: critics, policy and temperature, a gradient step each."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ...environments.specs import EnvironmentSpec
from .. import action_spaces, legal_actions
from ..interfaces import Update, UpdateOutput
from ..learning import optimizers, schedules, targets
from ..learning.descent import descend
from ..learning.rows import LearnedRows, learned_rows
from ..losses import actor_critic, estimates
from ..networks.core import require_box
from ..networks.windows import rows_of
from ..replay.items import Sample, Transition
from .config import SoftConfig
from .networks import SACNetworks

Nest = Any
DROPOUT = 0xD09
"""Sets the key of what critics leave out apart from the other draws of a step."""
_PART = 0.98
"""Of the entropy of drawing uniformly, that a policy of discrete actions is to keep."""


class SACParams(NamedTuple):
    """Parameters that gradients move; also an optimizer's state for each."""

    policy: Nest
    critic: Nest
    log_temperature: Nest


class SACState(NamedTuple):
    """All that learning changes."""

    params: SACParams
    target_critic: Nest
    optimizers: SACParams
    key: jax.Array
    steps: jax.Array
    """Gradient steps taken, int32."""


Penalty = Callable[[Nest, Nest, Transition, jax.Array], tuple[jax.Array, dict[str, jax.Array]]]
"""`(critic params, policy params, data, key) -> (loss [], metrics)`."""


def make_update(
    networks: SACNetworks,
    spec: EnvironmentSpec,
    config: SoftConfig,
    penalty: Penalty | None = None,
) -> Update:
    """Soft actor-critic (Haarnoja et al., 2018), https://arxiv.org/abs/1812.05905.

    Of discrete actions nothing is drawn: values and entropies are expectations over all that are
    legal (Christodoulou, 2019, https://arxiv.org/abs/1910.07207, equations 10 to 12).

    Args:
      networks: policy and critics.
      spec: of the environment.
      config: the settings.
      penalty: what the critics' loss has besides their errors; None: nothing.

    With a core actor and critics learn from windows, each with a memory of its own.
    With `num_target_critics` targets are those of REDQ (Chen et al., 2021,
    https://arxiv.org/abs/2101.05982), algorithm 1.
    """
    policy, critic, _ = networks
    estimate = estimates.regression(*config.critic_support)
    is_discrete = action_spaces.kinds_of(spec.actions) == {action_spaces.CHOICE}
    adam = optimizers.adam(schedules.learning_rate(config), config.adam_epsilon)

    def target_entropy(observation: Nest) -> jax.Array | float:
        if config.target_entropy is not None:
            return config.target_entropy
        if is_discrete:
            mask = legal_actions.of(observation)
            return _PART * jnp.log(spec.actions.num_values if mask is None else mask.sum(-1))
        box = require_box("sac", spec)
        return float(np.sum(np.log((box.maximum - box.minimum) / 2) - 1.0))

    def dropped(key: jax.Array) -> dict[str, jax.Array]:
        """The argument by which critics leave units out; nothing where they do not."""
        return {"key": jax.random.fold_in(key, DROPOUT)} if config.critic_dropout else {}

    def judge(policy_params, critic_params, observation, temperature, key, counted):
        """Soft values [B] of states, and logarithms of the probability [B] of what is done there,
        by those critics that `counted` leaves of all [E, ...]."""
        if is_discrete:
            log_prob = jax.nn.log_softmax(policy.apply(policy_params, observation))
            outputs = critic.apply(critic_params, observation, **dropped(key))
            q = counted(estimate.mean(outputs))
            value = actor_critic.soft_value(q, log_prob, temperature)
            expected = functools.partial(jnp.sum, axis=-1, where=log_prob > legal_actions.LEAST / 2)
            return expected(jnp.exp(log_prob) * value), expected(jnp.exp(log_prob) * log_prob)
        action, log_prob = networks.draw(policy_params, observation, key)
        outputs = critic.apply(critic_params, observation, action, **dropped(key))
        q = counted(estimate.mean(outputs))
        return actor_critic.soft_value(q, log_prob, temperature), log_prob

    def mean(q):
        return q if config.num_target_critics is None else jnp.mean(q, axis=0, keepdims=True)

    def init(key):
        key, policy_key, critic_key = jax.random.split(key, 3)
        params = SACParams(
            policy.init(policy_key),
            critic.init(critic_key),
            jnp.full((), math.log(config.initial_temperature)),
        )
        moments = SACParams(*map(adam.init, params))
        steps = jnp.zeros((), jnp.int32)
        return SACState(params, targets.init(params.critic), moments, key, steps)

    def critic_loss(params, policy_params, rows: LearnedRows, target, penalty_key):
        left_out = dropped(penalty_key)
        if is_discrete:
            of_all = critic.apply(params, rows.observation, **left_out)
            chosen = rows.action.reshape(1, -1, 1, *[1] * (of_all.ndim - 3))
            outputs = jnp.take_along_axis(of_all, chosen, axis=2)[:, :, 0]
        else:
            outputs = critic.apply(params, rows.observation, rows.action, **left_out)
        loss = rows.mean(estimate.loss(outputs, target))
        metrics = {"critic_loss": loss, "mean_q": rows.mean(estimate.mean(outputs))}
        if penalty is not None:
            more, penalty_metrics = penalty(params, policy_params, rows.data, penalty_key)
            loss, metrics = loss + more, {**metrics, **penalty_metrics}
        return loss, metrics

    def policy_loss(params, critic_params, temperature, rows: LearnedRows, key):
        value, log_prob = judge(params, critic_params, rows.observation, temperature, key, mean)
        return -rows.mean(value), log_prob

    def temperature_loss(log_temperature, log_prob, rows: LearnedRows):
        wanted = target_entropy(rows_of(rows.observation))
        losses = actor_critic.temperature_loss(log_temperature, log_prob, wanted)
        return rows.mean(losses), ()

    def step(state: SACState, sample: Sample):
        rows, params, moments = learned_rows(sample.data, config), state.params, state.optimizers
        key, next_key, policy_key = jax.random.split(state.key, 3)
        penalty_key = jax.random.fold_in(state.key, 3)  # A fourth, which leaves those three.
        temperature = jnp.exp(params.log_temperature)

        def descend_by(loss, field: str, *args: Any):
            return descend(
                loss,
                adam,
                getattr(params, field),
                getattr(moments, field),
                *args,
                max_norm=config.max_gradient_norm,
            )

        def some(q):
            if config.num_target_critics is None:
                return q
            drawn = jax.random.permutation(jax.random.fold_in(state.key, 4), len(q))
            return q[drawn[: config.num_target_critics]]

        behind = (state.target_critic, rows.following, temperature, next_key)
        value_t, _ = judge(params.policy, *behind, some)
        target = rows.targets(value_t, config)
        critics = descend_by(critic_loss, "critic", params.policy, rows, target, penalty_key)
        policies = descend_by(policy_loss, "policy", critics.params, temperature, rows, policy_key)
        temperatures = descend_by(temperature_loss, "log_temperature", policies.aux, rows)

        steps = state.steps + 1
        target_critic = targets.periodic(
            state.target_critic,
            critics.params,
            steps,
            config.target_update_period,
            rate=config.target_update_rate,
        )
        metrics = {
            **critics.aux,
            "policy_loss": policies.loss,
            "entropy": -rows.mean(policies.aux),
            "temperature": temperature,
        }
        done = (policies, critics, temperatures)
        params = SACParams(*(descent.params for descent in done))
        moments = SACParams(*(descent.optimizer for descent in done))
        return SACState(params, target_critic, moments, key, steps), UpdateOutput(metrics)

    return Update(init, step, lambda state: {"policy": state.params.policy})
