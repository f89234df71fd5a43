"""Critics of a state and an action, several of them as one network."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import haiku as hk
import jax
import jax.numpy as jnp

from ...environments.specs import EnvironmentSpec
from .. import action_spaces
from ..configs import CriticConfig, CriticLossConfig, TorsoConfig
from . import assembly, heads, hyperspherical, windows
from .core import Network, dummy, from_haiku
from .torsos import make_torso

Nest = Any
_Activation = Callable[[jax.Array], jax.Array]


def ensemble(network: Network, size: int) -> Network:
    """E networks that differ in their parameters, as one.

    Every array of the parameters is [E, ...], so that products of all members are one product; that
    vectors are repeated for each spares rearranging its results, and gradients, on CPU. Images are
    not: of those repeated a convolution goes group by group.
    `apply` gives [E, B, ...]; with a `key` each member has draws of its own. The minimum over E of
    two is that of clipped double Q-learning
    (Fujimoto et al., 2018, https://arxiv.org/abs/1802.09477).

    Args:
      network: of one member.
      size: E.
    """

    def init(key: jax.Array) -> Nest:
        return jax.vmap(network.init)(jax.random.split(key, size))

    def apply(params: Nest, *inputs: Nest, key: jax.Array | None = None) -> Any:
        members = jax.tree.leaves(params)[0].shape[0]  # Some are asked for the first alone.
        axes = jax.tree.map(lambda x: 0 if x.ndim <= 2 else None, inputs)
        each = jax.tree.map(
            lambda x: jnp.broadcast_to(x, (members, *x.shape)) if x.ndim <= 2 else x, inputs
        )
        if key is None:
            return jax.vmap(network.apply, in_axes=(0, *axes))(params, *each)

        def draw(key: jax.Array, params: Nest, *inputs: Nest) -> Any:
            return network.apply(params, *inputs, key=key)

        keys = jax.random.split(key, members)
        return jax.vmap(draw, in_axes=(0, 0, *axes))(keys, params, *each)

    return Network(init, apply)


def make_value(
    spec: EnvironmentSpec, hidden_sizes: Sequence[int], *, torso: str = "auto"
) -> Network:
    """Values [B] of observations [B, ...], behind a torso that `make_torso` makes."""

    def value(observation: Nest) -> jax.Array:
        features = make_torso(spec.observations, hidden_sizes, torso=torso)(observation)
        return heads.state_value(features)

    return from_haiku(value, dummy(spec.observations, 1))


def of_config(
    spec: EnvironmentSpec,
    config: CriticConfig,
    *,
    size: int = 2,
    num_atoms: int | None = None,
    dropout: float = 0.0,
) -> Network:
    """The critics that a config asks for; see `make_critic`. Where it is a `CriticLossConfig`, it
    says whether they give values or logits of atoms."""
    return make_critic(
        spec,
        config.critic_sizes,
        size=size,
        num_atoms=_atoms(config) if num_atoms is None else num_atoms,
        kind=config.critic_network,
        torso=_torso(config),
        dropout=dropout,
    )


def of_every_action(
    spec: EnvironmentSpec,
    config: CriticConfig,
    num_actions: int,
    *,
    size: int = 2,
    dropout: float = 0.0,
) -> Network:
    """Values [E, B, A] of all A choices, `apply(params, observation [B, ...])`, or the logits
    [E, B, A, Z] of each, likewise."""
    layers = _layers(config, num_actions)

    def values(observation: Nest) -> jax.Array:
        features = make_torso(spec.observations, (), torso=_torso(config))(observation)
        return layers(features, dropout)

    return ensemble(from_haiku(values, dummy(spec.observations, 1)), size)


def of_windows(
    spec: EnvironmentSpec,
    config: Any,
    *,
    size: int = 2,
    num_actions: int | None = None,
    dropout: float = 0.0,
) -> Network:
    """Values [E, M] of the rows of windows, `apply(params, window, action [M, ...])`; or with A
    choices those of all of them, [E, M, A], `apply(params, window)`. See `windows.ObservedWindow`.
    Where the config asks for logits, they are [..., Z].

    Each critic has a core of its own between the observation's features and its hidden layers.

    Args:
      spec: of the environment.
      config: a `CriticConfig` and a `MemoryConfig`.
      size: E.
      num_actions: A; None: the action is given.
      dropout: as of `make_critic`.
    """
    layers, core = _layers(config, num_actions), assembly.make_core(config)

    def values(window: windows.ObservedWindow, *action: Nest) -> jax.Array:
        torso = make_torso(spec.observations, (), torso=_torso(config))
        features = torso(windows.rows_of(window))
        x = windows.remember(core, features, window, config.burn_in)
        if num_actions is None:
            x = jnp.concatenate([x, action_spaces.flatten(spec.actions, *action)], axis=-1)
        return layers(x, dropout)

    given = () if num_actions is not None else (dummy(spec.actions, 1),)
    return ensemble(from_haiku(values, windows.empty(spec, core), *given), size)


def make_critic(
    spec: EnvironmentSpec,
    hidden_sizes: Sequence[int],
    *,
    size: int = 2,
    num_atoms: int | None = None,
    activation: Callable[[jax.Array], jax.Array] = jax.nn.relu,
    kind: str = "mlp",
    torso: str = "auto",
    dropout: float = 0.0,
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
      kind: "mlp"; "layer_norm", an MLP whose hidden layers are normalised (Ball et al., 2023,
        https://arxiv.org/abs/2302.02948); "residual", normalised residual blocks (SimBa, Lee et
        al., 2024, https://arxiv.org/abs/2410.09754), a block for each of the hidden sizes; or
        "hyperspherical", as many blocks on the unit sphere (SimbaV2, see `hyperspherical`).
      torso: of the observation's features, as `torsos.make_torso` takes it.
      dropout: chance that a unit of a hidden layer is left out, before it is normalised, where
        `apply` is given a `key` (DroQ, Hiraoka et al., 2022, https://arxiv.org/abs/2110.02034).
    """
    layers = _LAYERS[kind]

    def value(observation: Nest, action: Nest) -> jax.Array:
        features = make_torso(spec.observations, (), torso=torso)(observation)
        x = jnp.concatenate([features, action_spaces.flatten(spec.actions, action)], axis=-1)
        out = layers(x, hidden_sizes, num_atoms or 1, activation, dropout)
        return out[..., 0] if num_atoms is None else out

    one = from_haiku(value, dummy(spec.observations, 1), dummy(spec.actions, 1))
    return ensemble(one, size)


def _mlp(
    x: jax.Array, sizes: Sequence[int], outputs: int, activation: _Activation, dropout: float
) -> jax.Array:
    key = hk.maybe_next_rng_key() if dropout else None
    rate = None if key is None else dropout
    return hk.nets.MLP((*sizes, outputs), activation=activation)(x, rate, key)


def _layer_norm(
    x: jax.Array, sizes: Sequence[int], outputs: int, activation: _Activation, dropout: float
) -> jax.Array:
    for size in sizes:
        x = activation(_normalized(_dropped(hk.Linear(size)(x), dropout)))
    return hk.Linear(outputs)(x)


def _residual(
    x: jax.Array, sizes: Sequence[int], outputs: int, activation: _Activation, dropout: float
) -> jax.Array:
    """Blocks of two layers, the first four times as wide, whose results are added."""
    he = hk.initializers.VarianceScaling(2.0)
    x = hk.Linear(sizes[0])(x)
    for size in sizes:
        wide = activation(_dropped(hk.Linear(4 * size, w_init=he)(_normalized(x)), dropout))
        x = x + hk.Linear(size, w_init=he)(wide)
    return hk.Linear(outputs)(_normalized(x))


def _hyperspherical(
    x: jax.Array, sizes: Sequence[int], outputs: int, activation: _Activation, dropout: float
) -> jax.Array:
    return hyperspherical.layers(x, sizes, outputs, activation, lambda x: _dropped(x, dropout))


def _dropped(x: jax.Array, rate: float) -> jax.Array:
    """Units with some left out, where there is a key; the others are scaled up for them."""
    key = hk.maybe_next_rng_key() if rate else None
    return x if key is None else hk.dropout(key, rate, x)


def _normalized(x: jax.Array) -> jax.Array:
    return hk.LayerNorm(axis=-1, create_scale=True, create_offset=True)(x)


def _layers(
    config: CriticConfig, num_actions: int | None
) -> Callable[[jax.Array, float], jax.Array]:
    """Returns features [M, F] and dropout to values [M], or [M, A]; or to logits [..., Z]."""
    num_atoms, layers = _atoms(config), _LAYERS[config.critic_network]
    shape = (() if num_actions is None else (num_actions,)) + (
        () if num_atoms is None else (num_atoms,)
    )

    def apply(x: jax.Array, dropout: float) -> jax.Array:
        out = layers(x, config.critic_sizes, math.prod(shape), jax.nn.relu, dropout)
        return out.reshape(*out.shape[:-1], *shape)

    return apply


def _atoms(config: CriticConfig) -> int | None:
    return config.critic_support[0] if isinstance(config, CriticLossConfig) else None


def _torso(config: CriticConfig) -> str:
    return config.torso if isinstance(config, TorsoConfig) else "auto"


_LAYERS = {
    "mlp": _mlp,
    "layer_norm": _layer_norm,
    "residual": _residual,
    "hyperspherical": _hyperspherical,
}
