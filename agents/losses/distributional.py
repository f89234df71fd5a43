"""Losses of distributions over returns, for one state and action; batch them with `jax.vmap`.

A distribution is categorical, that is probabilities of fixed atoms (Bellemare et al., 2017,
https://arxiv.org/abs/1707.06887), or its quantiles (Dabney et al., 2018,
https://arxiv.org/abs/1710.10044). Letters: Z atoms, P atoms of another distribution, N and M
quantiles.
"""

from __future__ import annotations

import math

import chex
import jax
import jax.numpy as jnp
import numpy as np

from . import values


def project(
    returns: jax.Array, probabilities: jax.Array, atoms: jax.Array | np.ndarray
) -> jax.Array:
    """A categorical distribution on other atoms, by the least distance of Cramer.

    Bellemare et al. (2017), equation 7: every return's probability goes to its two neighbours, to
    the nearer the more, so that the mean stays; returns beyond the atoms go to the outermost.

    Args:
      returns: [P] what is distributed.
      probabilities: [P] of each.
      atoms: [Z] evenly spaced, rising; Z at least 2.

    Returns:
      [Z] the probabilities of the atoms.
    """
    chex.assert_rank([returns, probabilities, atoms], 1)
    chex.assert_type([returns, probabilities, atoms], float)
    spacing = atoms[1] - atoms[0]
    distance = jnp.abs(jnp.clip(returns, atoms[0], atoms[-1])[None, :] - atoms[:, None])
    return jnp.clip(1.0 - distance / spacing, 0.0, 1.0) @ probabilities


def two_hot(x: jax.Array, atoms: jax.Array | np.ndarray) -> jax.Array:
    """A number as the distribution on its two neighbours that has it as its mean.

    Schrittwieser et al. (2020), https://arxiv.org/abs/1911.08265, appendix F. A number beyond the
    atoms is the outermost.

    Args:
      x: [] the number.
      atoms: [Z] evenly spaced, rising; Z at least 2.

    Returns:
      [Z] the probabilities of the atoms.
    """
    chex.assert_rank(x, 0)
    return project(x[None], jnp.ones(1, x.dtype), atoms)


def smoothed_histogram(x: jax.Array, atoms: jax.Array | np.ndarray, width: float) -> jax.Array:
    """A number as a normal distribution about it, by how much of it is nearest to each atom.

    HL-Gauss: Imani and White (2018), https://arxiv.org/abs/1806.04613, as Farebrother et al.
    (2024), https://arxiv.org/abs/2403.03950, learn values by it. A number beyond the atoms is the
    outermost, and what lies beyond them is left out.

    Args:
      x: [] the number.
      atoms: [Z] evenly spaced, rising; Z at least 2.
      width: the standard deviation, in spacings.

    Returns:
      [Z] the probabilities of the atoms.
    """
    chex.assert_rank([x, atoms], [0, 1])
    spacing = atoms[1] - atoms[0]
    middle = jnp.clip(x, atoms[0], atoms[-1])
    edges = jnp.append(atoms - spacing / 2, atoms[-1] + spacing / 2)
    below = jax.lax.erf((edges - middle) / (spacing * width * math.sqrt(2.0)))
    return (below[1:] - below[:-1]) / (below[-1] - below[0])


def categorical_divergence(
    logits_tm1: jax.Array,
    r_t: jax.Array,
    discount_t: jax.Array,
    probabilities_t: jax.Array,
    atoms: jax.Array | np.ndarray,
) -> jax.Array:
    """The divergence of an estimated distribution from the one bootstrapped.

    Its gradient is that of the cross entropy that Bellemare et al. (2017), algorithm 1, descend; it
    is what Hessel et al. (2018, https://arxiv.org/abs/1710.02298) take for a priority. No gradient
    flows through the target.

    Args:
      logits_tm1: [Z] of the estimate at t-1.
      r_t: [] reward that followed, n-step where the transition is.
      discount_t: [] what a return at t is multiplied with, gamma included.
      probabilities_t: [Z] of the returns at t.
      atoms: [Z] the returns, evenly spaced.

    Returns:
      [] KL(target, estimate), in nats.
    """
    chex.assert_rank([logits_tm1, r_t, discount_t, probabilities_t, atoms], [1, 0, 0, 1, 1])
    target = jax.lax.stop_gradient(project(r_t + discount_t * atoms, probabilities_t, atoms))
    # Where a probability is 0 it counts for nothing; the logarithm needs a number nevertheless.
    log_target = jnp.log(jnp.maximum(target, 1e-30))
    return jnp.sum(target * (log_target - jax.nn.log_softmax(logits_tm1)))


def quantile_huber(errors: jax.Array, threshold: float) -> jax.Array:
    """The quantile regression loss, with a Huber loss in place of the absolute one.

    Dabney et al. (2018), equation 10; quantile i is that of the midpoint (2 i + 1) / 2 N.

    Args:
      errors: [N, M] targets less estimates: of N quantiles from M targets.
      threshold: error at which the Huber loss turns linear.

    Returns:
      [] the mean over targets, summed over quantiles.
    """
    chex.assert_rank(errors, 2)
    num_quantiles = errors.shape[0]
    midpoints = (jnp.arange(num_quantiles) + 0.5) / num_quantiles
    weights = jnp.abs(midpoints[:, None] - (errors < 0.0))
    return jnp.sum(jnp.mean(weights * values.huber(errors, threshold), axis=1))
