"""Critics of a state and an action, several of them as one network."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import haiku as hk
import jax
import jax.numpy as jnp

from ...environments.specs import EnvironmentSpec
from . import heads
from .core import Network, dummy, from_haiku
from .torsos import flatten, make_torso

Nest = Any


def ensemble(network: Network, size: int) -> Network:
    """E networks that differ in their parameters, as one.

    Every array of the parameters is [E, ...], so that products of all members are one product; that
    vectors are repeated for each spares rearranging its results, and gradients, on CPU. Images are
    not: of those repeated a convolution goes group by group.
    `apply` gives [E, B, ...]; the minimum over E of two is that of clipped double Q-learning
    (Fujimoto et al., 2018, https://arxiv.org/abs/1802.09477).

    Args:
      network: of one member.
      size: E.
    """

    def init(key: jax.Array) -> Nest:
        return jax.vmap(network.init)(jax.random.split(key, size))

    def apply(params: Nest, *inputs: Nest) -> Any:
        members = jax.tree.leaves(params)[0].shape[0]  # Some are asked for the first alone.
        axes = jax.tree.map(lambda x: 0 if x.ndim <= 2 else None, inputs)
        each = jax.tree.map(
            lambda x: jnp.broadcast_to(x, (members, *x.shape)) if x.ndim <= 2 else x, inputs
        )
        return jax.vmap(network.apply, in_axes=(0, *axes))(params, *each)

    return Network(init, apply)


def make_value(spec: EnvironmentSpec, hidden_sizes: Sequence[int]) -> Network:
    """Values [B] of observations [B, ...]: an MLP, or the Nature network on images."""

    def value(observation: Nest) -> jax.Array:
        return heads.state_value(make_torso(spec.observations, hidden_sizes)(observation))

    return from_haiku(value, dummy(spec.observations, 1))


def make_critic(
    spec: EnvironmentSpec,
    hidden_sizes: Sequence[int],
    *,
    size: int = 2,
    num_atoms: int | None = None,
    activation: Callable[[jax.Array], jax.Array] = jax.nn.relu,
) -> Network:
    """Values [E, B] of E critics, `apply(params, observation [B, ...], action [B, ...])`.

    Each is an MLP of the observation's features and the action's numbers side by side. With Z atoms
    it gives [E, B, Z] instead, what a distribution over returns is made of: logits, say.

    Args:
      spec: of the environment.
      hidden_sizes: units of the hidden layers.
      size: E.
      num_atoms: Z; None: values.
      activation: of the hidden layers.
    """

    def value(observation: Nest, action: Nest) -> jax.Array:
        features = make_torso(spec.observations, ())(observation)
        x = jnp.concatenate([features, flatten(spec.actions)(action)], axis=-1)
        out = hk.nets.MLP((*hidden_sizes, num_atoms or 1), activation=activation)(x)
        return out[..., 0] if num_atoms is None else out

    one = from_haiku(value, dummy(spec.observations, 1), dummy(spec.actions, 1))
    return ensemble(one, size)
