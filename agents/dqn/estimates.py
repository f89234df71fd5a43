"""What a DQN estimates of the returns of an action: their mean, or their distribution."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ..losses import distributional, values
from .config import DQNConfig


class Estimate(NamedTuple):
    """A kind of estimate, as pure functions.

    Attributes:
      shape: of what the network says of one action, [*S] below.
      mean: `[..., *S] -> [...]`, the expected return.
      read: `[..., *S] -> [..., *S]`, as what may be averaged: probabilities instead of logits.
      loss: `(estimate [*S], reward, discount, following [*S]) -> (loss, error)`, of one action
        from what was read of the action bootstrapped from; the error is what priorities go by.
    """

    shape: tuple[int, ...]
    mean: Callable[[jax.Array], jax.Array]
    read: Callable[[jax.Array], jax.Array]
    loss: Callable[..., tuple[jax.Array, jax.Array]]


def make(config: DQNConfig) -> Estimate:
    """The kind that a config names."""
    return {"none": _mean, "categorical": _categorical, "quantile": _quantile}[config.distribution](
        config
    )


def _mean(config: DQNConfig) -> Estimate:
    """Mnih et al. (2015)."""

    def loss(q_tm1, r_t, discount_t, q_t):
        error = values.td_error(q_tm1, r_t, discount_t, q_t)
        if config.loss == "huber":
            return values.huber(error, config.huber_threshold), error
        return values.squared(error), error

    return Estimate((), lambda q: q, lambda q: q, loss)


def _categorical(config: DQNConfig) -> Estimate:
    """Bellemare et al. (2017), https://arxiv.org/abs/1707.06887."""
    atoms = np.linspace(config.min_return, config.max_return, config.num_atoms, dtype=np.float32)

    def loss(logits_tm1, r_t, discount_t, probabilities_t):
        divergence = distributional.categorical_divergence(
            logits_tm1, r_t, discount_t, probabilities_t, atoms
        )
        return divergence, divergence

    return Estimate(atoms.shape, lambda x: jax.nn.softmax(x) @ atoms, jax.nn.softmax, loss)


def _quantile(config: DQNConfig) -> Estimate:
    """Dabney et al. (2018), https://arxiv.org/abs/1710.10044."""

    def loss(quantiles_tm1, r_t, discount_t, quantiles_t):
        targets = jax.lax.stop_gradient(r_t + discount_t * quantiles_t)
        errors = targets[None, :] - quantiles_tm1[:, None]
        mean_error = jnp.mean(jnp.abs(errors))
        return distributional.quantile_huber(errors, config.huber_threshold), mean_error

    return Estimate((config.num_atoms,), lambda x: jnp.mean(x, axis=-1), lambda x: x, loss)
