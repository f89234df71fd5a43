"""DQN's update."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from .. import legal_actions
from ..interfaces import Update, UpdateOutput
from ..learning import blocks, optimizers, schedules, targets
from ..learning.descent import descend
from ..learning.prioritisation import Prioritisation
from ..losses import values
from ..networks.core import Network
from ..replay.items import Sample, Transition
from .config import DQNConfig
from .networks import make_estimate

Nest = Any


class DQNState(NamedTuple):
    """All that learning changes."""

    params: Nest
    target_params: Nest
    optimizer: optax.OptState
    steps: jax.Array
    """Gradient steps taken, int32."""
    key: Nest = ()
    """Of noisy networks: the noise of a step is folded from it and the count. Never changes."""


class Noise(NamedTuple):
    """Keys of the noise of one gradient step, all apart (Fortunato et al., 2018, section 3.1)."""

    target: jax.Array | None = None
    online: jax.Array | None = None
    selector: jax.Array | None = None
    """Of the online network where it chooses the bootstrapped action."""


class TargetOutputs(NamedTuple):
    """Outputs of the target network for a batch, each [B, A, *S]."""

    following: jax.Array
    """Of the next observations."""
    present: Nest = ()
    """Of the observations, where Munchausen's reward needs them."""


class Masks(NamedTuple):
    """Masks of legal actions, bool [B, A]; None where every action is always legal."""

    following: jax.Array | None
    """Of the next observations."""
    present: jax.Array | None


def make_update(network: Network, config: DQNConfig) -> Update:
    """Q-learning (Mnih et al., 2015) with the additions that the config turns on."""
    rate = schedules.learning_rate(config)
    optimizer = optimizers.adam(rate, config.adam_epsilon)
    prioritisation = Prioritisation(config)
    is_noisy = config.noisy_std is not None
    estimate = make_estimate(config)

    def init(key):
        noise_key: Nest = ()
        if is_noisy:
            key, noise_key = jax.random.split(key)
        params = network.init(key)
        steps = jnp.zeros((), jnp.int32)
        return DQNState(params, targets.init(params), optimizer.init(params), steps, noise_key)

    def draw(state: DQNState) -> Noise:
        if not is_noisy:
            return Noise()
        return Noise(*jax.random.split(jax.random.fold_in(state.key, state.steps), 3))

    def target_outputs(state: DQNState, transition: Transition) -> TargetOutputs:
        params, key = state.target_params, draw(state).target
        following = network.apply(params, transition.next_observation, key=key)
        if config.munchausen_scale is None:
            return TargetOutputs(following)
        return TargetOutputs(following, network.apply(params, transition.observation, key=key))

    def log_probs(q, mask):
        """Log-probabilities [A] of Munchausen's policy, the softmax of values."""
        logits = legal_actions.restrict(q / config.munchausen_temperature, mask)
        return jax.nn.log_softmax(logits)

    def transition_loss(
        estimates_tm1, a_tm1, r_t, discount_t, outputs: TargetOutputs, selector_t, masks: Masks
    ):
        """Returns (loss, error) of one transition."""
        q_t = estimate.mean(selector_t)
        if config.munchausen_scale is None:
            following = estimate.read(outputs.following[legal_actions.best(q_t, masks.following)])
        else:
            temperature = config.munchausen_temperature
            log_probs_tm1 = log_probs(estimate.mean(outputs.present), masks.present)
            log_probs_t = log_probs(q_t, masks.following)
            r_t = values.munchausen_reward(
                r_t,
                discount_t,
                log_probs_tm1[a_tm1],
                log_probs_t,
                scale=config.munchausen_scale,
                temperature=temperature,
                least=config.munchausen_least,
            )
            following = jnp.exp(log_probs_t) @ estimate.read(outputs.following)
        return estimate.loss(estimates_tm1[a_tm1], r_t, discount_t, following)

    def loss(params, outputs: TargetOutputs, transition: Transition, weights, noise: Noise):
        estimates_tm1 = network.apply(params, transition.observation, key=noise.online)
        selector_t = outputs.following
        if config.double:
            selector_t = network.apply(params, transition.next_observation, key=noise.selector)
        masks = Masks(
            legal_actions.of(transition.next_observation), legal_actions.of(transition.observation)
        )
        each, errors = jax.vmap(transition_loss)(
            estimates_tm1,
            transition.action,
            transition.reward,
            config.discount * transition.discount,
            outputs,
            selector_t,
            masks,
        )
        mean_q = jnp.mean(estimate.mean(estimates_tm1), where=masks.present)
        return jnp.mean(weights * each), (errors, mean_q)

    def learn(state: DQNState, sample: Sample, outputs: TargetOutputs):
        """Takes a gradient step towards the target network's outputs; the target stays."""
        descent = descend(
            loss,
            optimizer,
            state.params,
            state.optimizer,
            outputs,
            sample.data,
            prioritisation.weights(sample.info, state.steps),
            draw(state),
            max_norm=config.max_gradient_norm,
        )
        errors, mean_q = descent.aux
        metrics = {
            "loss": descent.loss,
            "mean_q": mean_q,
            "mean_absolute_error": jnp.mean(jnp.abs(errors)),
            "gradient_norm": descent.gradient_norm,
        }
        state = state._replace(
            params=descent.params, optimizer=descent.optimizer, steps=state.steps + 1
        )
        return state, UpdateOutput(metrics, prioritisation.of_errors(errors))

    step, steps = blocks.towards_target(target_outputs, learn, config, varies_by_step=is_noisy)
    return Update(init, step, lambda state: {"policy": state.params}, steps)
