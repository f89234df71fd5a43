"""Networks with a memory that are applied to windows of rows as others are to single rows.

Letters: B windows of T rows each; M = B T rows, those of a window next to each other.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from ...environments.specs import EnvironmentSpec
from .. import leading_axes, legal_actions
from ..configs import MemoryConfig
from . import assembly
from .core import dummy
from .recurrent import Core, RecurrentNetwork, make_recurrent

Nest = Any


class ObservedWindow(NamedTuple):
    """Observations of windows, in the place of those of single rows."""

    observation: Nest
    """[B, T, ...]"""
    memory: Nest
    """[B, ...] of the policy, that each window began with when it was acted"""
    first: jax.Array
    """bool [B, T]: an episode begins"""


class WindowPolicy(NamedTuple):
    """A policy's network over windows, with what acting asks of it.

    Attributes:
      init: `key -> params`.
      apply: `(params, ObservedWindow) -> outputs [M, ...]`, from the stored memories.
      initial_state: of one stream; what an episode begins with.
      step: `(params, observation, state) -> (output, state)`, of one observation.
    """

    init: Callable[[jax.Array], Nest]
    apply: Callable[[Nest, ObservedWindow], Any]
    initial_state: Nest
    step: Callable[[Nest, Nest, Nest], tuple[Nest, Nest]]


def rows_of(observation: Nest) -> Nest:
    """Returns the observations [M, ...] of windows; those of single rows as they are."""
    return (
        leading_axes.merge(observation.observation)
        if isinstance(observation, ObservedWindow)
        else (observation)
    )


def empty(spec: EnvironmentSpec, core: Core) -> ObservedWindow:
    """Returns a window of one row, as networks are made from."""
    memory = jax.tree.map(lambda x: x[None], core.initial_state)
    return ObservedWindow(dummy(spec.observations, 1, 1), memory, jnp.zeros((1, 1), bool))


def make_policy(
    spec: EnvironmentSpec,
    config: MemoryConfig,
    torso: Callable[[Nest], jax.Array],
    head: Callable[[jax.Array], jax.Array],
) -> WindowPolicy:
    """A policy of a torso, the config's core and a head; choices are those that are legal.

    Args:
      spec: of the environment.
      config: says which core, and the burn-in.
      torso: observations [M, ...] to features [M, D], called inside a haiku transform.
      head: features [M, H] to parameters of actions, or to actions, [M, ...], likewise.
    """
    network: RecurrentNetwork = make_recurrent(
        spec.observations, torso, assembly.make_core(config), head
    )
    network = legal_actions.recurrent_policy_outputs(network)

    def apply(params: Nest, window: ObservedWindow) -> Any:
        outputs, _ = network.unroll(params, *window, config.burn_in)
        return leading_axes.merge(outputs)

    return WindowPolicy(network.init, apply, network.initial_state, network.step)


def remember(core: Core, features: jax.Array, window: ObservedWindow, burn_in: int) -> jax.Array:
    """Returns what a core makes of features [M, D] of windows, [M, H], from an empty memory.

    No memory of whoever judges is stored as a window is acted: the burn-in fills it.
    """
    batch = window.first.shape[0]
    state = jax.tree.map(lambda x: jnp.broadcast_to(x, (batch, *x.shape)), core.initial_state)
    rows = leading_axes.split(features, *window.first.shape)
    hidden, _ = core.unroll(rows, state, window.first, burn_in)
    return leading_axes.merge(hidden)
