"""The model that MuZero learns. B: batch, S: numbers of a state, A: actions, Z: atoms."""

from __future__ import annotations

from typing import Any, NamedTuple

import haiku as hk
import jax
import jax.numpy as jnp
import numpy as np

from ...environments.specs import EnvironmentSpec
from ..losses import values
from ..networks.core import dummy, from_haiku, require_discrete
from ..networks.torsos import make_torso
from .config import MuZeroConfig

Nest = Any


class MuZeroNetworks(NamedTuple):
    """A `Network` each; also the parameters of each."""

    representation: Any
    """`apply(params, observation [B, ...])` gives states [B, S], from 0 to 1."""
    dynamics: Any
    """`apply(params, state [B, S], action [B])` gives the state that follows [B, S], logits of the
    reward [B, Z], and the logit that the episode goes on [B]."""
    prediction: Any
    """`apply(params, state [B, S])` gives logits of actions [B, A] and of the return [B, Z]."""


def make_networks(spec: EnvironmentSpec, config: MuZeroConfig) -> MuZeroNetworks:
    """MLPs, with the Nature network before them on images.

    Raises:
      ValueError: where actions are anything but one discrete choice.
    """
    num_actions, sizes = require_discrete("muzero", spec), config.hidden_sizes

    def linear(size: int, name: str) -> hk.Linear:
        # All alike at first: no search prefers what nothing was learned of.
        return hk.Linear(size, w_init=jnp.zeros, name=name)

    def represent(observation):
        features = make_torso(spec.observations, sizes, torso=config.torso)(observation)
        return _scale(hk.Linear(config.state_size, name="state")(features))

    def advance(state, action):
        x = jnp.concatenate([state, jax.nn.one_hot(action, num_actions)], axis=-1)
        features = hk.nets.MLP(sizes, activate_final=True, name="hidden")(x)
        # What a step changes is added, so that states many steps on are learned as well.
        following = _scale(state + hk.Linear(config.state_size, name="state")(features))
        goes_on = hk.Linear(1, b_init=hk.initializers.Constant(2.0), name="continuation")
        return following, linear(config.num_atoms, "reward")(features), goes_on(features)[:, 0]

    def predict(state):
        features = hk.nets.MLP(sizes, activate_final=True, name="hidden")(state)
        return linear(num_actions, "policy")(features), linear(config.num_atoms, "value")(features)

    state = jnp.zeros((1, config.state_size))
    return MuZeroNetworks(
        from_haiku(represent, dummy(spec.observations, 1)),
        from_haiku(advance, state, jnp.zeros(1, jnp.int32)),
        from_haiku(predict, state),
    )


def make_atoms(config: MuZeroConfig) -> np.ndarray:
    """The rescaled returns [Z] that logits are of: signed square roots, evenly spaced."""
    with jax.ensure_compile_time_eval():  # A policy's state may be made within a traced function.
        least, greatest = (
            float(values.signed_hyperbolic(jnp.float32(x)))
            for x in (config.min_return, config.max_return)
        )
    return np.linspace(least, greatest, config.num_atoms, dtype=np.float32)


def expected(logits: jax.Array, atoms: np.ndarray) -> jax.Array:
    """The returns [...] that logits [..., Z] of rescaled ones stand for."""
    return values.signed_parabolic(jax.nn.softmax(logits) @ atoms)


def _scale(state: jax.Array) -> jax.Array:
    """States [B, S] from 0 to 1, as actions are (Schrittwieser et al., 2020, appendix G)."""
    least = jnp.min(state, axis=-1, keepdims=True)
    greatest = jnp.max(state, axis=-1, keepdims=True)
    return (state - least) / (greatest - least + 1e-5)
