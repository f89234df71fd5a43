"""Networks by a config: a torso, a core with a memory or none, and the agent's own head."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import haiku as hk
import jax
import jax.numpy as jnp

from ...environments.specs import EnvironmentSpec
from ..configs import CoreConfig, RecurrentConfig
from . import heads
from .distributions import Distribution
from .recurrent import Core, RecurrentNetwork, deep, gru, lstm, make_recurrent, memoryless
from .torsos import convolves, make_torso
from .transformer import gated_transformer

Nest = Any


def make_core(config: CoreConfig) -> Core:
    """The config's core."""
    if not config.is_recurrent:
        return memoryless()
    if config.core == "transformer":
        return gated_transformer(
            config.core_size,
            num_layers=config.core_layers,
            num_heads=config.core_heads,
            memory_length=config.memory_length,
            loop=config.core_loop,
        )
    core = {"lstm": lstm, "gru": gru}[config.core](config.core_size)
    return core if config.core_layers == 1 else deep([core] * config.core_layers)


def make_configured_torso(
    observations: Nest,
    config: RecurrentConfig,
    activation: Callable[[jax.Array], jax.Array] = jax.nn.relu,
    w_init: hk.initializers.Initializer | None = None,
) -> Callable[[Nest], jax.Array]:
    """The config's torso: observations [B, ...] to features [B, D], in the config's dtype.

    Raises:
      ValueError: where observations are nothing for the config's torso.
    """
    return make_torso(
        observations,
        config.hidden_sizes,
        activation,
        w_init,
        torso=config.torso,
        width=config.torso_width,
        # By attribute: where TensorFlow is imported, the name bfloat16 is of a type of its own.
        dtype=jnp.dtype(getattr(jnp, config.dtype)),
    )


def make_network(
    observations: Nest,
    config: RecurrentConfig,
    head: Callable[[jax.Array], Nest],
    activation: Callable[[jax.Array], jax.Array] = jax.nn.relu,
    w_init: hk.initializers.Initializer | None = None,
) -> RecurrentNetwork:
    """A network over windows of rows; without a core its memory is empty.

    Args:
      observations: their spec.
      config: its size, and the dtype that torso and core compute in.
      head: features [M, D], float32, to outputs [M, ...]; called inside a haiku transform.
      activation: of the torso, where it is an MLP.
      w_init: likewise.

    Raises:
      ValueError: where observations are nothing for the config's torso.
    """
    torso = make_configured_torso(observations, config, activation, w_init)
    return make_recurrent(observations, torso, make_core(config), head)


def actor_critic(
    spec: EnvironmentSpec,
    config: RecurrentConfig,
    actions: Distribution,
    *,
    initial_free: float,
    activation: Callable[[jax.Array], jax.Array] = jax.nn.relu,
) -> tuple[Callable[[Nest], Nest], Callable[[Nest], tuple[jax.Array, jax.Array]]]:
    """A torso, and a head to (action parameters [..., P], value [...]), for a core between them.

    Policy and value share a core and convolutions. Of MLPs each has one: in a shared one errors of
    values, which are as large as returns, would drown what the policy learns (as Andrychowicz et
    al., 2021, found, https://arxiv.org/abs/2006.05990, section 3.2).

    Args:
      spec: of the environment.
      config: as of `make_network`.
      actions: the family of distributions.
      initial_free: at first, of parameters that do not depend on observations.
      activation: of the torso, where it is an MLP.

    Raises:
      ValueError: where observations are nothing for the config's torso.
    """
    shared = config.is_recurrent or convolves(spec.observations, config.torso)
    one = make_configured_torso(
        spec.observations, config, activation, hk.initializers.Orthogonal(2.0**0.5)
    )

    def torso(observation: Nest) -> Nest:
        return one(observation) if shared else (one(observation), one(observation))

    def head(features: Nest) -> tuple[jax.Array, jax.Array]:
        of_policy, of_value = (features, features) if shared else features
        parameters = heads.action_parameters(
            of_policy, actions, scale=0.01, initial_free=initial_free
        )
        return parameters, heads.state_value(of_value)

    return torso, head
