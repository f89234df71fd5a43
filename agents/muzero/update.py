"""MuZero's update: its model learns from what happened, policy and value from searches."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from .. import leading_axes, legal_actions
from ..interfaces import Update, UpdateOutput
from ..learning import blocks, optimizers, schedules, targets
from ..learning.descent import descend
from ..learning.prioritisation import Prioritisation
from ..losses import distributional, masks, returns, values
from ..networks import distributions
from ..replay.items import Sample, Sequence
from .config import MuZeroConfig
from .networks import MuZeroNetworks, expected, make_atoms
from .search import make_search

Nest = Any


class MuZeroState(NamedTuple):
    """All that learning changes."""

    params: MuZeroNetworks
    target_params: MuZeroNetworks
    optimizer: optax.OptState
    steps: jax.Array
    """Gradient steps taken, int32."""


class Targets(NamedTuple):
    """Targets of the model for L rows; of a batch [B, L, ...], by steps ahead [K, B, L, ...]."""

    action: jax.Array
    """[L] taken in them."""
    reward: jax.Array
    """[L, Z] probabilities of its atoms."""
    discount: jax.Array
    """[L] that followed, gamma apart: 0 where the episode terminated."""
    policy: jax.Array
    """[L, A] probabilities of actions."""
    value: jax.Array
    """[L, Z] probabilities of its atoms."""
    mask: jax.Array
    """[L] 1 where there is such a row, and it is known what came of it."""
    legal: jax.Array | None
    """[L, A] bool: the actions that are legal there; None: all of them everywhere."""


def make_update(networks: MuZeroNetworks, config: MuZeroConfig) -> Update:
    """MuZero: Schrittwieser et al. (2020), https://arxiv.org/abs/1911.08265, with the policy's loss
    of Danihelka et al. (2022) and targets by a new search (Schrittwieser et al., 2021,
    https://arxiv.org/abs/2104.06294).

    The model is unrolled from every row of a sequence, so that one search a row is the target of
    all states that stand for it. It learns where episodes end, in place of states that absorb.
    """
    rate = schedules.learning_rate(config)
    optimizer = optimizers.adam(rate, config.adam_epsilon)
    prioritisation = Prioritisation(config)
    atoms, search = make_atoms(config), make_search(networks, config)

    def init(key):
        keys = jax.random.split(key, len(networks))
        params = MuZeroNetworks(*(n.init(k) for n, k in zip(networks, keys, strict=True)))
        steps = jnp.zeros((), jnp.int32)
        return MuZeroState(params, targets.init(params), optimizer.init(params), steps)

    def target_outputs(state: MuZeroState, data: Sequence) -> tuple[jax.Array, jax.Array]:
        """Returns policies [B, T, A] and values [B, T] of all rows, by the target network."""
        rows, params = leading_axes.merge(data.observation), state.target_params
        if config.reanalyse:
            found = search(params, rows, jax.random.key(0), 0.0)
            policy, value = found.policy, found.value
        else:
            hidden = networks.representation.apply(params.representation, rows)
            value = expected(networks.prediction.apply(params.prediction, hidden)[1], atoms)
            policy = leading_axes.merge(data.extras["policy"])
        return leading_axes.split((policy, value), *data.mask.shape)

    def make_targets(policy: jax.Array, value: jax.Array, data: Sequence) -> Targets:
        """Makes the targets of one sequence, of its L = T - 1 rows before the last."""
        mask = masks.learned_steps(data.step_type, data.mask)[:-1]
        discount_t = config.discount * data.discount[:-1]
        target = returns.n_step_targets(data.reward[:-1], discount_t, value, mask, config.n_step)
        reward, target = (
            jax.vmap(distributional.two_hot, (0, None))(values.signed_hyperbolic(x), atoms)
            for x in (data.reward[:-1], target)
        )
        rows = data.action, data.discount, policy, legal_actions.of(data.observation)
        action, discount, policy, legal = jax.tree.map(lambda x: x[:-1], rows)
        return Targets(action, reward, discount, policy, target, mask, legal)

    def loss(params: MuZeroNetworks, outputs, data: Sequence, weights):
        batch_targets = jax.vmap(make_targets)(outputs[0], outputs[1], data)
        ahead = [
            jax.tree.map(lambda x, k=k: _ahead(x, k), batch_targets)
            for k in range(config.unroll_steps)
        ]
        first = leading_axes.merge(jax.tree.map(lambda x: x[:, :-1], data.observation))
        hidden = networks.representation.apply(params.representation, first)
        rows = batch_targets.mask.shape

        def advance(hidden, batch_targets: Targets):
            """Losses [B, L] of one step ahead, the entropy, and values."""
            of_action, of_return = networks.prediction.apply(params.prediction, hidden)
            flat = leading_axes.merge(batch_targets)
            hidden, of_reward, goes_on = networks.dynamics.apply(
                params.dynamics, hidden, flat.action
            )
            # Half a gradient each step: however far the model is unrolled, states learn alike.
            hidden = 0.5 * hidden + jax.lax.stop_gradient(0.5 * hidden)
            pairs = ((of_action, flat.policy), (of_return, flat.value), (of_reward, flat.reward))
            losses = [optax.softmax_cross_entropy(*pair) for pair in pairs]
            losses.append(optax.sigmoid_binary_cross_entropy(goes_on, flat.discount))
            entropy = distributions.categorical(of_action.shape[-1]).entropy
            losses.append(jax.vmap(entropy)(legal_actions.restrict(of_action, flat.legal)))
            found = [x.reshape(rows) for x in (*losses, expected(of_return, atoms))]
            return hidden, (*found, batch_targets.mask)

        steps = jax.tree.map(lambda *x: jnp.stack(x), *ahead)
        _, (*losses, value, mask) = jax.lax.scan(advance, hidden, steps)
        means = [masks.mean(weights[:, None] * x, mask) for x in losses]
        policy_loss, value_loss, reward_loss, continuation_loss, entropy = means
        metrics = {
            "policy_loss": policy_loss,
            "value_loss": value_loss,
            "reward_loss": reward_loss,
            "continuation_loss": continuation_loss,
            "entropy": entropy,
            "mean_value": masks.mean(value[0], mask[0]),
        }
        errors = values.signed_parabolic(batch_targets.value @ atoms) - value[0]
        total = policy_loss + config.value_cost * value_loss + reward_loss + continuation_loss
        total -= config.entropy_cost * entropy
        return total, (metrics, errors, mask[0])

    def learn(state: MuZeroState, sample: Sample, outputs):
        """Takes a gradient step towards the outputs for all rows; the target stays."""
        descent = descend(
            loss,
            optimizer,
            state.params,
            state.optimizer,
            outputs,
            sample.data,
            prioritisation.weights(sample.info, state.steps),
            max_norm=config.max_gradient_norm,
        )
        metrics, errors, mask = descent.aux
        metrics |= {"loss": descent.loss, "gradient_norm": descent.gradient_norm}
        state = state._replace(
            params=descent.params, optimizer=descent.optimizer, steps=state.steps + 1
        )
        sizes = prioritisation.of_sequences(errors, mask, config.priority_mix)
        return state, UpdateOutput(metrics, sizes)

    step, steps = blocks.towards_target(target_outputs, learn, config)
    return Update(init, step, lambda state: {"policy": state.params}, steps)


def _ahead(x: jax.Array, steps: int) -> jax.Array:
    """Of rows [B, L, ...] those some steps later, and 0 where there are none."""
    shifted = x[:, steps : x.shape[1]]
    return jnp.pad(shifted, [(0, 0), (0, x.shape[1] - shifted.shape[1])] + [(0, 0)] * (x.ndim - 2))
