"""TD3's update: two critics at every gradient step, policy and targets at some."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from ...environments.specs import EnvironmentSpec
from ..interfaces import Update, UpdateOutput
from ..learning import optimizers, schedules, targets
from ..learning.descent import descend
from ..learning.rows import LearnedRows, learned_rows
from ..losses import actor_critic, estimates
from ..networks.core import require_box
from ..programs import dispatch
from ..replay.items import Sample, Sequence, Transition
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
    """TD3 (Fujimoto et al., 2018), https://arxiv.org/abs/1802.09477, algorithm 1.

    With a core actor and critics learn from windows, each with a memory of its own.
    """
    policy, critic = networks
    adam = optimizers.adam(schedules.learning_rate(config), config.adam_epsilon)
    estimate = estimates.regression(*config.critic_support)
    box, period = require_box("td3", spec), config.target_update_period

    def init(key):
        key, policy_key, critic_key = jax.random.split(key, 3)
        params = TD3Networks(policy.init(policy_key), critic.init(critic_key))
        learned = TD3Learned(params, targets.init(params), TD3Networks(*map(adam.init, params)))
        return TD3State(learned, key, jnp.zeros((), jnp.int32))

    def bootstrap(target: TD3Networks, rows: LearnedRows, key):
        """Returns the targets [B] of the critics' values."""
        action = actor_critic.smoothed_action(
            policy.apply(target.policy, rows.following),
            key,
            std=config.smoothing_std,
            clip=config.smoothing_clip,
            minimum=box.minimum,
            maximum=box.maximum,
        )
        q_t = estimate.mean(critic.apply(target.critic, rows.following, action))
        return rows.targets(jnp.min(q_t, axis=0), config)

    def critic_loss(params, rows: LearnedRows, target):
        outputs = critic.apply(params, rows.observation, rows.action)
        return rows.mean(estimate.loss(outputs, target)), rows.mean(estimate.mean(outputs))

    def policy_loss(params, critic_params, rows: LearnedRows):
        first = jax.tree.map(lambda x: x[:1], critic_params)
        action = policy.apply(params, rows.observation)
        outputs = critic.apply(first, rows.observation, action)
        return -rows.mean(estimate.mean(outputs)), ()

    def learn_critics(state: TD3State, data: Transition | Sequence):
        """A gradient step of the critics alone."""
        params, followed, moments = state.learned
        rows = learned_rows(data, config)
        target = bootstrap(followed, rows, jax.random.fold_in(state.key, state.steps))
        done = descend(
            critic_loss,
            adam,
            params.critic,
            moments.critic,
            rows,
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

    def learn_policy(learned: TD3Learned, data: Transition | Sequence):
        """A gradient step of the policy, after which all targets move."""
        params, followed, moments = learned
        done = descend(
            policy_loss,
            adam,
            params.policy,
            moments.policy,
            params.critic,
            learned_rows(data, config),
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
