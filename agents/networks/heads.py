"""Heads: features [B, D] to what an agent needs. To be called inside a haiku transform."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import haiku as hk
import jax
import jax.numpy as jnp
from dm_env import specs

from .columns import MLP, Linear
from .distributions import Distribution


def action_values(
    features: jax.Array,
    num_actions: int,
    hidden_sizes: Sequence[int] = (),
    *,
    shape: tuple[int, ...] = (),
    linear: Callable[..., Linear] = Linear,
) -> jax.Array:
    """Values [B, A, *shape] of A actions.

    Args:
      features: [B, D].
      num_actions: A.
      hidden_sizes: of layers before the last.
      shape: of what is said of an action: () a number, (Z,) a distribution by Z numbers.
      linear: makes a layer, of a size and a name.
    """
    if hidden_sizes:
        features = MLP(hidden_sizes, activate_final=True, name="hidden", linear=linear)(features)
    values = linear(num_actions * math.prod(shape), name="head")(features)
    return values.reshape(-1, num_actions, *shape) if shape else values


def dueling_values(
    features: jax.Array,
    num_actions: int,
    hidden_sizes: Sequence[int],
    *,
    shape: tuple[int, ...] = (),
    linear: Callable[..., Linear] = Linear,
) -> jax.Array:
    """As `action_values`: a state's value and each action's advantage over the mean.

    Wang et al. (2016), https://arxiv.org/abs/1511.06581, equation 9.
    """
    size = math.prod(shape)
    value = MLP((*hidden_sizes, size), name="value", linear=linear)(features)
    advantage = MLP((*hidden_sizes, num_actions * size), name="advantage", linear=linear)(features)
    if shape:
        value, advantage = (x.reshape(x.shape[0], -1, *shape) for x in (value, advantage))
    return value + advantage - jnp.mean(advantage, axis=1, keepdims=True)


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
    parameters = Linear(actions.num_parameters, w_init=w_init, name="policy_head")(features)
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
    raw = Linear(box.minimum.size, w_init=w_init, name="policy_head")(features)
    return middle + half * jnp.tanh(raw.reshape(-1, *box.shape))


def state_value(features: jax.Array) -> jax.Array:
    """Values [B] of states."""
    w_init = hk.initializers.Orthogonal(1.0)
    return Linear(1, w_init=w_init, name="value_head")(features)[..., 0]
