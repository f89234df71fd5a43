"""Estimates of the returns of an action: of their mean, or of their distribution."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from . import distributional, values


class Estimate(NamedTuple):
    """A kind of estimate, as pure functions.

    Attributes:
      shape: of a network's output for one action, [*S] below.
      mean: `[..., *S] -> [...]`, the expected return.
      read: `[..., *S] -> [..., *S]`, as what may be averaged: probabilities instead of logits.
      loss: `(estimate [*S], reward, discount, following [*S]) -> (loss, error)`, of one action
        from what was read of the action bootstrapped from; the error is what priorities go by.
    """

    shape: tuple[int, ...]
    mean: Callable[[jax.Array], jax.Array]
    read: Callable[[jax.Array], jax.Array]
    loss: Callable[..., tuple[jax.Array, jax.Array]]


def mean(loss_of: Callable[[jax.Array], jax.Array]) -> Estimate:
    """Of the mean alone (Mnih et al., 2015).

    Args:
      loss_of: an error [] to its loss [].
    """

    def loss(q_tm1, r_t, discount_t, q_t):
        error = values.td_error(q_tm1, r_t, discount_t, q_t)
        return loss_of(error), error

    return Estimate((), lambda q: q, lambda q: q, loss)


def categorical(min_return: float, max_return: float, num_atoms: int) -> Estimate:
    """Of the probabilities of fixed returns, evenly spaced, by their logits.

    Bellemare et al. (2017), https://arxiv.org/abs/1707.06887.
    """
    atoms = np.linspace(min_return, max_return, num_atoms, dtype=np.float32)

    def loss(logits_tm1, r_t, discount_t, probabilities_t):
        divergence = distributional.categorical_divergence(
            logits_tm1, r_t, discount_t, probabilities_t, atoms
        )
        return divergence, divergence

    return Estimate(atoms.shape, lambda x: jax.nn.softmax(x) @ atoms, jax.nn.softmax, loss)


def quantiles(count: int, huber_threshold: float) -> Estimate:
    """Of quantiles of the return (Dabney et al., 2018), https://arxiv.org/abs/1710.10044."""

    def loss(quantiles_tm1, r_t, discount_t, quantiles_t):
        targets = jax.lax.stop_gradient(r_t + discount_t * quantiles_t)
        errors = targets[None, :] - quantiles_tm1[:, None]
        mean_error = jnp.mean(jnp.abs(errors))
        return distributional.quantile_huber(errors, huber_threshold), mean_error

    return Estimate((count,), lambda x: jnp.mean(x, axis=-1), lambda x: x, loss)
