"""IQL's update: it evaluates no action that the data does not hold."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from ..interfaces import Update, UpdateOutput
from ..learning import optimizers, schedules, targets
from ..learning.descent import descend
from ..losses import estimates, values
from ..losses import policy as regression
from ..replay.items import Sample, Transition
from .config import IQLConfig
from .networks import IQLNetworks

Nest = Any


class IQLParams(NamedTuple):
    policy: Nest
    critic: Nest
    value: Nest


class IQLState(NamedTuple):
    """All that learning changes."""

    params: IQLParams
    target_critic: Nest
    optimizer: optax.OptState
    steps: jax.Array
    """Gradient steps taken, int32."""


def make_update(networks: IQLNetworks, config: IQLConfig) -> Update:
    """Implicit Q-learning: Kostrikov et al. (2021), https://arxiv.org/abs/2110.06169.

    The value is an expectile of the critics' values of the data's actions, the critics bootstrap
    from it, and the policy makes those actions likely that are worth more (equations 5 to 7).
    """
    policy, critic, value, actions = networks
    estimate = estimates.regression(*config.critic_support)
    optimizer = optimizers.adam(schedules.learning_rate(config), config.adam_epsilon)

    def init(key):
        keys = jax.random.split(key, 3)
        params = IQLParams(policy.init(keys[0]), critic.init(keys[1]), value.init(keys[2]))
        steps = jnp.zeros((), jnp.int32)
        return IQLState(params, targets.init(params.critic), optimizer.init(params), steps)

    def loss(params: IQLParams, target_critic, data: Transition):
        seen = data.observation, data.action
        q_target = jnp.min(estimate.mean(critic.apply(target_critic, *seen)), axis=0)
        advantage = q_target - value.apply(params.value, data.observation)
        value_loss = jnp.mean(values.expectile(advantage, config.expectile))

        following = value.apply(params.value, data.next_observation)
        goal = data.reward + config.discount * data.discount * following
        outputs = critic.apply(params.critic, *seen)
        critic_loss = jnp.mean(estimate.loss(outputs, goal))

        weight = regression.exponential_weight(advantage, config.temperature, config.max_weight)
        parameters = policy.apply(params.policy, data.observation)
        log_prob = jax.vmap(actions.log_prob)(parameters, data.action)
        policy_loss = -jnp.mean(weight * log_prob)
        metrics = {
            "value_loss": value_loss,
            "critic_loss": critic_loss,
            "policy_loss": policy_loss,
            "mean_q": jnp.mean(estimate.mean(outputs)),
            "advantage": jnp.mean(advantage),
            "weight": jnp.mean(weight),
            "log_prob": jnp.mean(log_prob),
        }
        # No network is learned by two of them: together they are one step of Adam.
        return value_loss + critic_loss + policy_loss, metrics

    def step(state: IQLState, sample: Sample):
        descent = descend(
            loss,
            optimizer,
            state.params,
            state.optimizer,
            state.target_critic,
            sample.data,
            max_norm=config.max_gradient_norm,
        )
        steps = state.steps + 1
        target_critic = targets.periodic(
            state.target_critic,
            descent.params.critic,
            steps,
            config.target_update_period,
            rate=config.target_update_rate,
        )
        state = IQLState(descent.params, target_critic, descent.optimizer, steps)
        return state, UpdateOutput({**descent.aux, "gradient_norm": descent.gradient_norm})

    return Update(init, step, lambda state: {"policy": state.params.policy})
