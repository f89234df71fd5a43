"""Estimates of the returns of an action: of their mean, or of their distribution."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from . import actor_critic, distributional, values


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


class Regression(NamedTuple):
    """A way of learning mean returns from outputs of critics [..., *S], as pure functions.

    Attributes:
      mean: `[..., *S] -> [...]`, the expected return.
      loss: `(outputs [E, ..., *S], target [...]) -> [...]`, summed over E critics. No gradient
        flows through the target.
    """

    mean: Callable[[jax.Array], jax.Array]
    loss: Callable[[jax.Array, jax.Array], jax.Array]


def regression(num_atoms: int | None, min_return: float, max_return: float) -> Regression:
    """Of squared errors; or with Z atoms, of which critics give logits [..., Z], by cross entropy.

    Farebrother et al. (2024), https://arxiv.org/abs/2403.03950: returns are histograms over atoms,
    smoothed by a normal distribution that is 0.75 of their spacing wide.

    Args:
      num_atoms: Z; None: outputs are returns.
      min_return: the least atom.
      max_return: the greatest.
    """
    if num_atoms is None:
        return Regression(lambda q: q, actor_critic.critic_loss)
    atoms = np.linspace(min_return, max_return, num_atoms, dtype=np.float32)

    def histogram(target: jax.Array) -> jax.Array:
        return distributional.smoothed_histogram(target, atoms, 0.75)

    def loss(logits: jax.Array, target: jax.Array) -> jax.Array:
        each = jax.vmap(histogram)(jax.lax.stop_gradient(target).reshape(-1))
        wanted = each.reshape(*target.shape, num_atoms)
        # Less its least, which moves no gradient: critics that are right have a loss of 0.
        log_wanted = jnp.log(jnp.maximum(wanted, 1e-30))
        return jnp.sum(wanted * (log_wanted - jax.nn.log_softmax(logits)), axis=(0, -1))

    return Regression(lambda logits: jax.nn.softmax(logits) @ atoms, loss)
