"""Policies as the opponents of a learner, and the older versions of itself that it plays."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from ...environments.functional.games import Opponent, SelfPlay
from ...environments.functional.interface import FunctionalEnvironment
from ..interfaces import ActorCore

Nest = Any
_END = 1 << 30
"""Actions after which every schedule of exploration is at its end."""
_DRAW = 0x5E1F
"""Sets the draw of a version apart from all else that a step draws."""


def facing(environment: FunctionalEnvironment, policy: ActorCore, params: Nest) -> Any:
    """Returns a game whose opponent plays a policy, as it explores at the end of its schedules.

    Args:
      environment: with `against`.
      policy: of the learner's own observations; its state lasts for an episode.
      params: its parameters, which may be traced.
    """
    assert environment.against is not None

    def init(key: jax.Array) -> Nest:
        return policy.set_num_actions(policy.init(key), jnp.int32(_END))

    def move(
        observation: Nest, mask: jax.Array, state: Nest, key: jax.Array
    ) -> tuple[jax.Array, Nest]:
        del mask, key  # One is part of the observation, the other of the state.
        action, state = policy.select_action(params, observation, state)
        return action, state

    return environment.against(Opponent(init, move))


class Versions(NamedTuple):
    """Older versions of a policy, of which the newest take the place of the oldest."""

    params: Nest
    """[V, ...]; version n is at n mod V"""
    total: jax.Array
    """int32 []: versions ever held"""
    due: jax.Array
    """int32 []: actor steps at which the next one is"""


def empty(how: SelfPlay, params: Nest) -> Versions | tuple[()]:
    """Returns room for the versions of a policy; () where none are held.

    Args:
      how: versions are held.
      params: of the policy, or their shapes.
    """
    if not how.versions:
        return ()
    room = jax.tree.map(lambda leaf: jnp.zeros((how.versions, *leaf.shape), leaf.dtype), params)
    return Versions(room, jnp.int32(0), jnp.int32(0))


def renew(how: SelfPlay, versions: Any, params: Nest, steps: jax.Array, active: Any) -> Any:
    """Holds the present version, where one is due.

    Args:
      how: versions are held.
      versions: those held.
      params: of the present one.
      steps: actor steps taken, int32 [].
      active: whether anything may change.
    """
    if not how.versions:
        return versions
    due = (steps >= versions.due) & active
    place = jnp.where(due, versions.total % how.versions, how.versions)
    held = jax.tree.map(
        lambda all, one: all.at[place].set(one, mode="drop"), versions.params, params
    )
    return Versions(held, versions.total + due, jnp.where(due, steps + how.period, versions.due))


def draw(how: SelfPlay, versions: Any, params: Nest, key: jax.Array) -> Nest:
    """Returns the parameters of the opponent of one step: the present ones, or a version's.

    Args:
      how: opponents are chosen.
      versions: those held.
      params: the present ones.
      key: of the step.
    """
    if not how.versions:
        return params
    held = jnp.minimum(versions.total, how.versions)
    number = jax.random.randint(jax.random.fold_in(key, _DRAW), (), 0, jnp.maximum(2 * held, 1))
    place = jnp.minimum(number, how.versions - 1)
    return jax.tree.map(
        lambda all, one: jnp.where(number < held, all[place], one), versions.params, params
    )
