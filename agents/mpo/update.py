"""MPO's update: a critic, and a policy that follows its own better actions within limits."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from .. import leading_axes
from ..interfaces import Update, UpdateOutput
from ..learning import optimizers, schedules, targets
from ..learning.descent import descend
from ..losses import estimates, mpo
from ..losses.values import squared
from ..replay.items import Sample, Transition
from .config import MPOConfig
from .networks import MPONetworks

Nest = Any


class Duals(NamedTuple):
    """Prices of the limits; in the state before the softplus that keeps them above 0."""

    temperature: jax.Array
    """[] of the weights of actions."""
    multipliers: jax.Array
    """[R] of the KLs, one for each respect of the distribution."""


class MPOParams(NamedTuple):
    """Parameters that gradients move; also an optimizer's state for each."""

    policy: Nest
    critic: Nest
    duals: Nest


class MPOState(NamedTuple):
    """All that learning changes."""

    params: MPOParams
    targets: MPOParams
    """Without duals."""
    optimizers: MPOParams
    key: jax.Array
    steps: jax.Array
    """Gradient steps taken, int32."""


def make_update(networks: MPONetworks, config: MPOConfig) -> Update:
    """MPO (Abdolmaleki et al., 2018), https://arxiv.org/abs/1806.06920.

    The actions that are weighed are those that the critic's target is made of, of the next
    observation: each costs one evaluation of the critic.
    """
    policy, critic, actions = networks
    adam = optimizers.adam(schedules.learning_rate(config), config.adam_epsilon)
    dual_adam = optimizers.adam(config.dual_learning_rate, config.adam_epsilon)
    limits = {"deviation": config.epsilon_scale}
    epsilons = [limits.get(respect, config.epsilon_mean) for respect in actions.respects]
    estimate = estimates.mean(squared)
    if config.distributional:
        estimate = estimates.categorical(config.min_return, config.max_return, config.num_atoms)

    def init(key):
        key, policy_key, critic_key = jax.random.split(key, 3)
        duals = Duals(
            _inverse_softplus(config.initial_temperature, ()),
            _inverse_softplus(config.initial_multiplier, (len(epsilons),)),
        )
        params = MPOParams(policy.init(policy_key), critic.init(critic_key), duals)
        moments = MPOParams(
            adam.init(params.policy), adam.init(params.critic), dual_adam.init(duals)
        )
        followed = targets.init(params._replace(duals=()))
        return MPOState(params, followed, moments, key, jnp.zeros((), jnp.int32))

    def draw(parameters, key):
        """Actions [B, N, ...] of the distributions [B, P]."""
        num_rows = parameters.shape[0]
        keys = jax.random.split(key, num_rows * config.num_samples)
        sample = jax.vmap(jax.vmap(actions.sample, (None, 0)))
        return sample(parameters, keys.reshape(num_rows, config.num_samples))

    def evaluate(params, observation, drawn):
        """Returns the critic's values [B, N] of actions [B, N, ...], or logits [B, N, Z]."""
        # Rows of one observation stay together, so that a batch that is split stays split.
        tiled = jax.tree.map(lambda x: jnp.repeat(x, config.num_samples, axis=0), observation)
        outputs = critic.apply(params, tiled, leading_axes.merge(drawn))[0]
        return leading_axes.split(outputs, -1, config.num_samples)

    def critic_loss(params, data: Transition, following):
        outputs = critic.apply(params, data.observation, data.action)[0]
        losses, _ = jax.vmap(estimate.loss)(
            outputs, data.reward, config.discount * data.discount, following
        )
        return jnp.mean(losses), jnp.mean(estimate.mean(outputs))

    def policy_loss(params, duals, data: Transition, old, drawn, q_t):
        new = policy.apply(params, data.next_observation)

        def of_state(p, p_old, drawn, q):
            """p: [P], drawn: [N, ...], q: [N]."""
            weights = mpo.improved_weights(q, duals.temperature)
            parts = actions.decouple(p, p_old)
            log_probs = [jax.vmap(actions.log_prob, (None, 0))(part, drawn) for part in parts]
            kls = jnp.stack([actions.kl(p_old, part) for part in parts])
            return jnp.sum(duals.multipliers * kls) - jnp.sum(weights * sum(log_probs)), kls

        losses, kls = jax.vmap(of_state)(new, old, drawn, q_t)
        return jnp.mean(losses), jnp.mean(kls, axis=0)

    def dual_loss(raw: Duals, q_t, kls):
        duals = positive(raw)
        temperature = jax.vmap(mpo.temperature_dual, (0, None, None))(
            q_t, duals.temperature, config.epsilon
        )
        multipliers = mpo.multiplier_dual(kls, duals.multipliers, jnp.asarray(epsilons))
        return jnp.mean(temperature) + jnp.sum(multipliers), ()

    def step(state: MPOState, sample: Sample):
        data, params, moments, old = sample.data, state.params, state.optimizers, state.targets
        key, drawn_key = jax.random.split(state.key)
        duals = positive(params.duals)
        parameters = policy.apply(old.policy, data.next_observation)
        drawn = draw(parameters, drawn_key)
        outputs = evaluate(old.critic, data.next_observation, drawn)
        q_t, following = estimate.mean(outputs), jnp.mean(estimate.read(outputs), axis=1)

        max_norm = config.max_gradient_norm
        critics = descend(
            critic_loss, adam, params.critic, moments.critic, data, following, max_norm=max_norm
        )
        policies = descend(
            policy_loss,
            adam,
            params.policy,
            moments.policy,
            duals,
            data,
            parameters,
            drawn,
            q_t,
            max_norm=max_norm,
        )
        kls = policies.aux
        dual = descend(dual_loss, dual_adam, params.duals, moments.duals, q_t, kls)

        steps = state.steps + 1
        params = MPOParams(policies.params, critics.params, dual.params)
        followed = targets.periodic(
            old,
            params._replace(duals=()),
            steps,
            config.target_update_period,
            rate=config.target_update_rate,
        )
        metrics = {
            "critic_loss": critics.loss,
            "policy_loss": policies.loss,
            "mean_q": critics.aux,
            "kl": jnp.sum(kls),
            "temperature": duals.temperature,
            "multiplier": duals.multipliers[0],
        }
        moments = MPOParams(policies.optimizer, critics.optimizer, dual.optimizer)
        return MPOState(params, followed, moments, key, steps), UpdateOutput(metrics)

    return Update(init, step, lambda state: {"policy": state.params.policy})


def positive(raw: Duals) -> Duals:
    """Returns duals above 0, of those that are learned."""
    return jax.tree.map(lambda x: jax.nn.softplus(x) + 1e-8, raw)


def _inverse_softplus(value: float, shape: tuple[int, ...]) -> jax.Array:
    return jnp.full(shape, value + math.log(-math.expm1(-value)))
