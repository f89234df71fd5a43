"""Running mean and variance of observations, kept by the learner and applied by the policy."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from dm_env import specs

from ...environments import action_masks

Nest = Any


class Statistics(NamedTuple):
    """Mean and variance of every number that networks see, as nests like the observation but for a
    mask of legal actions, which nothing here changes."""

    num_rows: jax.Array
    mean: Nest
    variance: Nest


class Variables(NamedTuple):
    """Variables of a policy with observations that may be normalised."""

    params: Nest
    statistics: Statistics | None
    """Of observations; None leaves them as they are."""

    def observe(self, observation: Nest) -> Nest:
        """The observation as the network takes it."""
        return observation if self.statistics is None else apply(self.statistics, observation)

    def learned(self, params: Nest, observation: Nest, mask: jax.Array) -> Variables:
        """With new parameters, and the batch in the statistics: see `update`."""
        if self.statistics is None:
            return Variables(params, None)
        return Variables(params, update(self.statistics, observation, mask))


def init(spec: Nest) -> Statistics:
    """Of no observation: mean 0 and variance 1.

    Raises:
      ValueError: where a part of the observation is not made of real numbers.
    """
    spec = action_masks.visible(spec)
    for part in jax.tree.leaves(spec):
        if isinstance(part, specs.DiscreteArray) or part.dtype.kind != "f":
            raise ValueError(
                f"Observations of type {part.dtype}{list(part.shape)} cannot be normalised; "
                "set normalize_observations to False, or leave the wrapper `normalized` out."
            )
    return Statistics(
        jnp.zeros(()),
        jax.tree.map(lambda s: jnp.zeros(s.shape), spec),
        jax.tree.map(lambda s: jnp.ones(s.shape), spec),
    )


def update(statistics: Statistics, observation: Nest, mask: jax.Array) -> Statistics:
    """The statistics with a batch added: observations [..., *shape] where mask [...] is 1.

    Chan et al. (1983), "Algorithms for computing the sample variance", equation 1.5.
    """
    observation = action_masks.visible(observation)
    batch_count = jnp.sum(mask)
    count = statistics.num_rows + batch_count
    axes = tuple(range(mask.ndim))

    def moments(x, mean, variance):
        weights = mask.reshape(mask.shape + (1,) * (x.ndim - mask.ndim))
        batch_mean = jnp.sum(weights * x, axes) / jnp.maximum(batch_count, 1.0)
        batch_square = jnp.sum(weights * (x - batch_mean) ** 2, axes)
        delta = batch_mean - mean
        total = variance * statistics.num_rows + batch_square
        total += delta**2 * statistics.num_rows * batch_count / jnp.maximum(count, 1.0)
        new_mean = mean + delta * batch_count / jnp.maximum(count, 1.0)
        return new_mean, jnp.where(count > 0, total / jnp.maximum(count, 1.0), variance)

    pairs = jax.tree.map(moments, observation, statistics.mean, statistics.variance)
    mean, variance = (
        jax.tree.map(lambda _, pair, i=i: pair[i], statistics.mean, pairs) for i in (0, 1)
    )
    return Statistics(count, mean, variance)


def apply(statistics: Statistics, observation: Nest, clip: float = 10.0) -> Nest:
    """The observation less the mean over the standard deviation, clipped to +-`clip`."""
    normal = jax.tree.map(
        lambda x, mean, var: jnp.clip((x - mean) * jax.lax.rsqrt(var + 1e-8), -clip, clip),
        action_masks.visible(observation),
        statistics.mean,
        statistics.variance,
    )
    return action_masks.with_visible(observation, normal)
