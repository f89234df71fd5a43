"""N functional environments stepped as one, episode after episode, as pure functions.

The semantics are those of `environments.Vector`: an environment that stands at LAST begins its next
episode with the next step, ignores its action, and gives FIRST.
"""

from __future__ import annotations

from typing import NamedTuple

import dm_env
import jax
import jax.numpy as jnp

from ..specs import Nest, require_real
from .interface import FunctionalEnvironment, State

_FIRST, _MID, _LAST = (int(kind) for kind in dm_env.StepType)
_MANY, _BLOCKS = 128, 16
"""Fewer environments than the first begin episodes one by one, more in parts of 1 / 16 of all."""


class Streams(NamedTuple):
    """State of N environments."""

    environments: State
    """Pytree of [N, ...]"""
    keys: jax.Array
    """[N] PRNG keys, each environment's own; no environment's episodes depend on another's"""
    step: jax.Array
    """int32 []: steps taken by all of them; names the keys of a step"""
    over: jax.Array
    """bool [N]: the environment stands at LAST"""


def reset(environment: FunctionalEnvironment, keys: jax.Array) -> tuple[Streams, dm_env.TimeStep]:
    """Begins an episode in every environment.

    Args:
      environment: any.
      keys: [N] PRNG keys, from which all that happens to an environment follows.

    Raises:
      UnsupportedSpaceError: if observations are complex numbers.
    """
    n = keys.shape[0]
    now = jnp.int32(0)
    states, observation = _strong(jax.vmap(environment.reset)(_keys_of_step(keys, now)))
    require_real(observation, "the environment")
    streams = Streams(states, keys, now + 1, jnp.zeros(n, bool))
    return streams, _first(n, observation)


def step(
    environment: FunctionalEnvironment, streams: Streams, actions: Nest
) -> tuple[Streams, dm_env.TimeStep]:
    """Steps every environment.

    Args:
      environment: that of `reset`.
      streams: state that `reset` or `step` returned.
      actions: nest of [N, ...].

    Returns:
      The state, and a time step of arrays with a leading dimension N: `step_type` int32, `reward`
      and `discount` float32, and the observations.
    """
    over = streams.over
    keys = _keys_of_step(streams.keys, streams.step)
    states, outcome = _strong(jax.vmap(environment.step)(streams.environments, actions, keys))
    last = (outcome.terminated | outcome.truncated) & ~over
    kinds = jnp.where(over, _FIRST, jnp.where(last, _LAST, _MID)).astype(jnp.int32)
    reward = jnp.where(over, 0.0, outcome.reward).astype(jnp.float32)
    discount = jnp.where(outcome.terminated & ~over, 0.0, 1.0).astype(jnp.float32)

    states, observation = _begin(environment, over, keys, (states, outcome.observation))
    streams = Streams(states, streams.keys, streams.step + 1, last)
    return streams, dm_env.TimeStep(kinds, reward, discount, observation)


def _keys_of_step(keys: jax.Array, number: jax.Array) -> jax.Array:
    """Returns the keys [N] of a step: it either begins an episode or goes on with one."""
    return jax.vmap(jax.random.fold_in, (0, None))(keys, number)


def _first(n: int, observation: Nest) -> dm_env.TimeStep:
    zeros = jnp.zeros(n, jnp.float32)
    return dm_env.TimeStep(jnp.full(n, _FIRST, jnp.int32), zeros, zeros + 1, observation)


def _begin(
    environment: FunctionalEnvironment, over: jax.Array, keys: jax.Array, others: Nest
) -> tuple[State, Nest]:
    """Begins episodes in some environments, a few at a time.

    Most steps begin few episodes or none, and to begin one may cost more than a step. Under `vmap`
    a loop goes on only as long as one of its rows does, where `cond` would always begin them all.

    Args:
      environment: any.
      over: bool [N], which.
      keys: [N]
      others: state and observation [N, ...] of the rest.
    """
    n = over.shape[0]
    size = 1 if n < _MANY else n // _BLOCKS

    def begin(carry: tuple[jax.Array, Nest]) -> tuple[jax.Array, Nest]:
        waiting, found = carry
        if size == 1:  # Without the sums and the gather that several take.
            rows = jnp.argmax(waiting)[None]
        else:
            rows = jnp.nonzero(waiting, size=size, fill_value=n)[0]
        begun = jax.vmap(environment.reset)(keys.at[rows].get(mode="clip"))
        found = jax.tree.map(lambda old, new: old.at[rows].set(new, mode="drop"), found, begun)
        return waiting.at[rows].set(False, mode="drop"), found

    return jax.lax.while_loop(lambda carry: carry[0].any(), begin, (over, others))[1]


def _strong(nest: Nest) -> Nest:
    """Returns arrays without weak types, for a change of which a program is compiled anew."""

    def strong(leaf: jax.Array) -> jax.Array:
        if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            return leaf
        return jax.lax.convert_element_type(leaf, leaf.dtype)

    return jax.tree.map(strong, nest)
