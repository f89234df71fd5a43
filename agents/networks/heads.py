"""Heads: features [B, D] to what an agent needs. To be called inside a haiku transform."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import haiku as hk
import jax
import jax.numpy as jnp
from dm_env import specs

from . import noisy
from .distributions import Distribution


def action_values(
    features: jax.Array,
    num_actions: int,
    hidden_sizes: Sequence[int] = (),
    *,
    shape: tuple[int, ...] = (),
    noisy_std: float | None = None,
) -> jax.Array:
    """Values [B, A, *shape] of A actions.

    Args:
      features: [B, D].
      num_actions: A.
      hidden_sizes: of layers before the last.
      shape: of the estimate of an action: () a number, (Z,) a distribution by Z numbers.
      noisy_std: that layers with noise begin with; None: layers have none.
    """
    linear, mlp = _layers(noisy_std)
    if hidden_sizes:
        features = mlp(hidden_sizes, activate_final=True, name="hidden")(features)
    values = linear(num_actions * math.prod(shape), name="head")(features)
    return values.reshape(-1, num_actions, *shape) if shape else values


def dueling_values(
    features: jax.Array,
    num_actions: int,
    hidden_sizes: Sequence[int],
    *,
    shape: tuple[int, ...] = (),
    noisy_std: float | None = None,
) -> jax.Array:
    """As `action_values`: a state's value and each action's advantage over the mean.

    Wang et al. (2016), https://arxiv.org/abs/1511.06581, equation 9.
    """
    size, (_, mlp) = math.prod(shape), _layers(noisy_std)
    value = mlp((*hidden_sizes, size), name="value")(features)
    advantage = mlp((*hidden_sizes, num_actions * size), name="advantage")(features)
    if shape:
        value, advantage = (x.reshape(x.shape[0], -1, *shape) for x in (value, advantage))
    return value + advantage - jnp.mean(advantage, axis=1, keepdims=True)


def _layers(noisy_std: float | None) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """Returns the makers of a linear layer and of an MLP, with noise or without."""
    if noisy_std is None:
        return hk.Linear, hk.nets.MLP
    return (
        functools.partial(noisy.NoisyLinear, std=noisy_std),
        functools.partial(noisy.NoisyMLP, std=noisy_std),
    )


def action_parameters(
    features: jax.Array, actions: Distribution, *, scale: float, initial_free: float
) -> jax.Array:
    """Parameters [B, P] of a distribution over actions.

    Args:
      features: [B, D].
      actions: the family.
      scale: of the last layer's orthogonal weights; small ones begin near the same distribution
        everywhere.
      initial_free: at first, of parameters that do not depend on the features.
    """
    w_init = hk.initializers.Orthogonal(scale)
    parameters = hk.Linear(actions.num_parameters, w_init=w_init, name="policy_head")(features)
    if not actions.free_parameters:
        return parameters
    free = hk.get_parameter(
        "log_std", (actions.free_parameters,), init=hk.initializers.Constant(initial_free)
    )
    free = jnp.broadcast_to(free, (*parameters.shape[:-1], actions.free_parameters))
    return jnp.concatenate([parameters, free], axis=-1)


def bounded_actions(features: jax.Array, box: specs.BoundedArray) -> jax.Array:
    """Actions [B, ...] of a box, by hyperbolic tangents; at first near its middle.

    Args:
      features: [B, D].
      box: its bounds have the action's shape.
    """
    middle, half = (box.maximum + box.minimum) / 2, (box.maximum - box.minimum) / 2
    w_init = hk.initializers.Orthogonal(0.01)
    raw = hk.Linear(box.minimum.size, w_init=w_init, name="policy_head")(features)
    return middle + half * jnp.tanh(raw.reshape(-1, *box.shape))


def state_value(features: jax.Array) -> jax.Array:
    """Values [B] of states."""
    w_init = hk.initializers.Orthogonal(1.0)
    return hk.Linear(1, w_init=w_init, name="value_head")(features)[..., 0]
