"""D4PG's update: a critic of distributions of returns, and a policy that climbs their means."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

from ..interfaces import Update, UpdateOutput
from ..learning import optimizers, schedules, targets
from ..learning.descent import descend
from ..losses import estimates
from ..replay.items import Sample, Transition
from .config import D4PGConfig
from .networks import D4PGNetworks


class D4PGState(NamedTuple):
    """All that learning changes."""

    params: D4PGNetworks
    targets: D4PGNetworks
    optimizers: D4PGNetworks
    steps: jax.Array
    """Gradient steps taken, int32."""


def make_update(networks: D4PGNetworks, config: D4PGConfig) -> Update:
    """D4PG (Barth-Maron et al., 2018), https://arxiv.org/abs/1804.08617, algorithm 1."""
    policy, critic = networks
    adam = optimizers.adam(schedules.learning_rate(config), config.adam_epsilon)
    estimate = estimates.categorical(config.min_return, config.max_return, config.num_atoms)

    def init(key):
        policy_key, critic_key = jax.random.split(key)
        params = D4PGNetworks(policy.init(policy_key), critic.init(critic_key))
        moments = D4PGNetworks(*map(adam.init, params))
        return D4PGState(params, targets.init(params), moments, jnp.zeros((), jnp.int32))

    def returns_of(params, observation, action):
        """Logits [B, Z] of the atoms."""
        return critic.apply(params, observation, action)[0]

    def critic_loss(params, data: Transition, probabilities_t):
        logits_tm1 = returns_of(params, data.observation, data.action)
        losses, _ = jax.vmap(estimate.loss)(
            logits_tm1, data.reward, config.discount * data.discount, probabilities_t
        )
        return jnp.mean(losses), jnp.mean(estimate.mean(logits_tm1))

    def policy_loss(params, critic_params, data: Transition):
        action = policy.apply(params, data.observation)
        logits = returns_of(critic_params, data.observation, action)
        return -jnp.mean(estimate.mean(logits)), ()

    def step(state: D4PGState, sample: Sample):
        data, params, moments = sample.data, state.params, state.optimizers
        following = policy.apply(state.targets.policy, data.next_observation)
        logits_t = returns_of(state.targets.critic, data.next_observation, following)
        target = estimate.read(logits_t)
        max_norm = config.max_gradient_norm
        critics = descend(
            critic_loss, adam, params.critic, moments.critic, data, target, max_norm=max_norm
        )
        policies = descend(
            policy_loss,
            adam,
            params.policy,
            moments.policy,
            critics.params,
            data,
            max_norm=max_norm,
        )
        params = D4PGNetworks(policies.params, critics.params)
        steps = state.steps + 1
        followed = targets.periodic(
            state.targets,
            params,
            steps,
            config.target_update_period,
            rate=config.target_update_rate,
        )
        metrics = {
            "critic_loss": critics.loss,
            "policy_loss": policies.loss,
            "mean_q": critics.aux,
        }
        moments = D4PGNetworks(policies.optimizer, critics.optimizer)
        return D4PGState(params, followed, moments, steps), UpdateOutput(metrics)

    return Update(init, step, lambda state: {"policy": state.params.policy})
