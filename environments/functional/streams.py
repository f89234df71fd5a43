"""N functional environments stepped as one, episode after episode, as pure functions.

The semantics are those of `environments.Vector`: an environment that stands at LAST begins its next
episode with the next step, ignores its action, and gives FIRST.
"""

from __future__ import annotations

from typing import NamedTuple

import dm_env
import jax
import jax.numpy as jnp

from ..specs import Nest
from .interface import FunctionalEnvironment, State

_FIRST, _MID, _LAST = (int(kind) for kind in dm_env.StepType)


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
    """
    n = keys.shape[0]
    now = jnp.int32(0)
    states, observation = jax.vmap(environment.reset)(_keys_of_step(keys, now))
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
    states, outcome = jax.vmap(environment.step)(streams.environments, actions, keys)
    last = (outcome.terminated | outcome.truncated) & ~over
    kinds = jnp.where(over, _FIRST, jnp.where(last, _LAST, _MID)).astype(jnp.int32)
    reward = jnp.where(over, 0.0, outcome.reward).astype(jnp.float32)
    discount = jnp.where(outcome.terminated & ~over, 0.0, 1.0).astype(jnp.float32)

    def begin() -> tuple[State, Nest]:
        begun = jax.vmap(environment.reset)(keys)
        return _choose(over, begun, (states, outcome.observation))

    # Most steps begin no episode, and to begin one may cost more than a step.
    states, observation = jax.lax.cond(over.any(), begin, lambda: (states, outcome.observation))
    streams = Streams(states, streams.keys, streams.step + 1, last)
    return streams, dm_env.TimeStep(kinds, reward, discount, observation)


def _keys_of_step(keys: jax.Array, number: jax.Array) -> jax.Array:
    """Returns the keys [N] of a step: it either begins an episode or goes on with one."""
    return jax.vmap(jax.random.fold_in, (0, None))(keys, number)


def _first(n: int, observation: Nest) -> dm_env.TimeStep:
    zeros = jnp.zeros(n, jnp.float32)
    return dm_env.TimeStep(jnp.full(n, _FIRST, jnp.int32), zeros, zeros + 1, observation)


def _choose(rows: jax.Array, these: Nest, others: Nest) -> Nest:
    """Returns `these` in rows [N] that are True, `others` elsewhere."""

    def choose(this: jax.Array, other: jax.Array) -> jax.Array:
        return jnp.where(rows.reshape(rows.shape + (1,) * (this.ndim - 1)), this, other)

    return jax.tree.map(choose, these, others)
