"""TD3's update: two critics at every gradient step, policy and targets at some."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from ...environments.specs import EnvironmentSpec
from ..interfaces import Update, UpdateOutput
from ..learning import optimizers, schedules, targets
from ..learning.descent import descend
from ..losses import actor_critic
from ..networks.core import require_box
from ..programs import dispatch
from ..replay.items import Sample, Transition
from .config import TD3Config
from .networks import TD3Networks

Nest = Any


class TD3Learned(NamedTuple):
    """Parameters that gradients move, and the targets that follow them."""

    params: TD3Networks
    targets: TD3Networks
    optimizers: TD3Networks


class TD3State(NamedTuple):
    """All that learning changes."""

    learned: TD3Learned
    key: jax.Array
    """Never changes: the randomness of a step is folded from it and the count."""
    steps: jax.Array
    """Gradient steps taken, int32."""


def make_update(networks: TD3Networks, spec: EnvironmentSpec, config: TD3Config) -> Update:
    """TD3 (Fujimoto et al., 2018), https://arxiv.org/abs/1802.09477, algorithm 1."""
    policy, critic = networks
    adam = optimizers.adam(schedules.learning_rate(config), config.adam_epsilon)
    box, period = require_box("td3", spec), config.target_update_period

    def init(key):
        key, policy_key, critic_key = jax.random.split(key, 3)
        params = TD3Networks(policy.init(policy_key), critic.init(critic_key))
        learned = TD3Learned(params, targets.init(params), TD3Networks(*map(adam.init, params)))
        return TD3State(learned, key, jnp.zeros((), jnp.int32))

    def bootstrap(target: TD3Networks, data: Transition, key):
        """Returns the targets [B] of the critics' values."""
        action = actor_critic.smoothed_action(
            policy.apply(target.policy, data.next_observation),
            key,
            std=config.smoothing_std,
            clip=config.smoothing_clip,
            minimum=box.minimum,
            maximum=box.maximum,
        )
        q_t = critic.apply(target.critic, data.next_observation, action)
        return data.reward + config.discount * data.discount * jnp.min(q_t, axis=0)

    def critic_loss(params, data: Transition, target):
        q = critic.apply(params, data.observation, data.action)
        return jnp.mean(actor_critic.critic_loss(q, target)), jnp.mean(q)

    def policy_loss(params, critic_params, data: Transition):
        first = jax.tree.map(lambda x: x[:1], critic_params)
        action = policy.apply(params, data.observation)
        return -jnp.mean(critic.apply(first, data.observation, action)), ()

    def learn_critics(state: TD3State, data: Transition):
        """A gradient step of the critics alone."""
        params, followed, moments = state.learned
        target = bootstrap(followed, data, jax.random.fold_in(state.key, state.steps))
        done = descend(
            critic_loss,
            adam,
            params.critic,
            moments.critic,
            data,
            target,
            max_norm=config.max_gradient_norm,
        )
        learned = TD3Learned(
            params._replace(critic=done.params),
            followed,
            moments._replace(critic=done.optimizer),
        )
        metrics = {
            "critic_loss": done.loss,
            "mean_q": done.aux,
            "gradient_norm": done.gradient_norm,
        }
        return TD3State(learned, state.key, state.steps + 1), UpdateOutput(metrics)

    def learn_policy(learned: TD3Learned, data: Transition):
        """A gradient step of the policy, after which all targets move."""
        params, followed, moments = learned
        done = descend(
            policy_loss,
            adam,
            params.policy,
            moments.policy,
            params.critic,
            data,
            max_norm=config.max_gradient_norm,
        )
        params = params._replace(policy=done.params)
        followed = targets.polyak(followed, params, config.target_update_rate)
        return TD3Learned(params, followed, moments._replace(policy=done.optimizer))

    def step(state: TD3State, sample: Sample):
        state, output = learn_critics(state, sample.data)
        learned = jax.lax.cond(
            state.steps % period == 0,
            learn_policy,
            lambda learned, data: learned,
            state.learned,
            sample.data,
        )
        return state._replace(learned=learned), output

    def steps(num_steps: int):
        """Fuses steps; with whole periods the policy's turn is known and needs no condition."""
        if num_steps % period:
            return dispatch.fuse(step, num_steps)
        learn_block = dispatch.fuse(learn_critics, period)

        def step_block(state: TD3State, samples: Sample):
            state, output = learn_block(state, samples.data)
            last = jax.tree.map(lambda x: x[-1], samples.data)
            return state._replace(learned=learn_policy(state.learned, last)), output

        return dispatch.in_blocks(step_block, num_steps, period)

    return Update(init, step, lambda state: {"policy": state.learned.params.policy}, steps)
