"""CRR's update: the policy follows the data's actions that its critics find better than its own."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from ...environments.specs import EnvironmentSpec
from .. import action_spaces
from ..interfaces import Update, UpdateOutput
from ..learning import optimizers, schedules, targets
from ..learning.descent import descend
from ..losses import estimates
from ..losses import policy as regression
from ..replay.items import Sample, Transition
from .config import CRRConfig
from .networks import CRRNetworks

Nest = Any


class CRRParams(NamedTuple):
    policy: Nest
    critic: Nest


class CRRState(NamedTuple):
    """All that learning changes."""

    params: CRRParams
    targets: CRRParams
    optimizer: optax.OptState
    key: jax.Array
    steps: jax.Array
    """Gradient steps taken, int32."""


def make_update(networks: CRRNetworks, spec: EnvironmentSpec, config: CRRConfig) -> Update:
    """Critic-regularised regression: Wang et al. (2020), https://arxiv.org/abs/2006.15134."""
    policy, critic, actions = networks
    estimate = estimates.regression(*config.critic_support)
    optimizer = optimizers.adam(schedules.learning_rate(config), config.adam_epsilon)

    def init(key):
        key, policy_key, critic_key = jax.random.split(key, 3)
        params = CRRParams(policy.init(policy_key), critic.init(critic_key))
        steps = jnp.zeros((), jnp.int32)
        return CRRState(params, targets.init(params), optimizer.init(params), key, steps)

    def q_values(params: CRRParams, observation, action):
        """The least of the critics' values, [B]."""
        outputs = critic.apply(params.critic, observation, action)
        return jnp.min(estimate.mean(outputs), axis=0)

    def state_values(params: CRRParams, observation, key):
        """The mean value [B] of actions that the policy draws."""
        parameters = policy.apply(params.policy, observation)

        def draw(key):
            drawn = jax.vmap(actions.sample)(parameters, jax.random.split(key, len(parameters)))
            # What the environment makes of it.
            return q_values(params, observation, action_spaces.clip(spec.actions, drawn))

        keys = jax.random.split(key, config.num_action_samples)
        return jnp.mean(jax.vmap(draw)(keys), axis=0)

    def loss(params: CRRParams, target: CRRParams, data: Transition, key):
        seen, (next_key, key) = (data.observation, data.action), jax.random.split(key)
        following = state_values(target, data.next_observation, next_key)
        goal = data.reward + config.discount * data.discount * following
        outputs = critic.apply(params.critic, *seen)
        critic_loss = jnp.mean(estimate.loss(outputs, goal))

        fixed = jax.lax.stop_gradient(params)
        advantage = q_values(fixed, *seen) - state_values(fixed, data.observation, key)
        weight = (advantage > 0).astype(jnp.float32)
        if config.weights == "exponential":
            weight = regression.exponential_weight(advantage, config.temperature, config.max_weight)
        parameters = policy.apply(params.policy, data.observation)
        log_prob = jax.vmap(actions.log_prob)(parameters, data.action)
        policy_loss = -jnp.mean(weight * log_prob)
        metrics = {
            "critic_loss": critic_loss,
            "policy_loss": policy_loss,
            "mean_q": jnp.mean(estimate.mean(outputs)),
            "advantage": jnp.mean(advantage),
            "weight": jnp.mean(weight),
            "log_prob": jnp.mean(log_prob),
        }
        # Policy and critics share nothing: together they are one step of Adam.
        return critic_loss + policy_loss, metrics

    def step(state: CRRState, sample: Sample):
        key, draws = jax.random.split(state.key)
        descent = descend(
            loss,
            optimizer,
            state.params,
            state.optimizer,
            state.targets,
            sample.data,
            draws,
            max_norm=config.max_gradient_norm,
        )
        steps = state.steps + 1
        moved = targets.periodic(
            state.targets,
            descent.params,
            steps,
            config.target_update_period,
            rate=config.target_update_rate,
        )
        state = CRRState(descent.params, moved, descent.optimizer, key, steps)
        return state, UpdateOutput({**descent.aux, "gradient_norm": descent.gradient_norm})

    return Update(init, step, lambda state: {"policy": state.params.policy})
