"""Games of two players for one learner: who its opponent is, and how the opponent is chosen."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from ..errors import InvalidOptionError
from ..options import integer
from ..specs import Nest

Key = jax.Array
KINDS = ("random", "self", "pool")
_MOST_VERSIONS, _MOST_STEPS = 10_000, 2**31 - 1


class Opponent(NamedTuple):
    """A player that makes the moves between two of the learner's, as pure functions.

    Attributes:
      init: `key -> state`, as an episode begins.
      move: `(observation, mask, state, key) -> (action, state)`. The observation is what the
        learner would see in its place, the mask says which actions are legal, bool [A], and the key
        is for this move alone.
    """

    init: Callable[[Key], Any]
    move: Callable[[Nest, jax.Array, Any, Key], tuple[jax.Array, Any]]


class SelfPlay(NamedTuple):
    """How a learner is to be trained against itself."""

    versions: int
    """Older versions of the learner that are held; half of the moves are one's of these, drawn
    anew for every step of all environments, and half the present learner's. 0: all are the present
    learner's."""
    period: int
    """Actor steps, over all environments, between two versions that are held."""


def uniform() -> Opponent:
    """Returns an opponent that draws its moves from those that are legal."""

    def move(observation: Nest, mask: jax.Array, state: Any, key: Key) -> tuple[jax.Array, Any]:
        del observation
        return jax.random.categorical(key, jnp.where(mask, 0.0, -jnp.inf)), state

    return Opponent(lambda key: (), move)


def self_play(opponent: str, versions: int, period: int) -> SelfPlay | None:
    """Returns how a learner is to be trained against itself; None: against somebody else.

    Args:
      opponent: one of `KINDS`, or the directory of a run.
      versions: of a pool.
      period: likewise.

    Raises:
      InvalidOptionError: if one of these cannot be.
    """
    if opponent not in KINDS and opponent_run(opponent) is None:
        raise InvalidOptionError(
            f"opponent must be one of {', '.join(KINDS)}, or the directory of a run, as ./DIR or "
            f"DIR/best, got {opponent!r}"
        )
    integer("opponent_versions", versions, 1, _MOST_VERSIONS)
    integer("opponent_period", period, 1, _MOST_STEPS)
    if opponent not in ("self", "pool"):
        return None
    return SelfPlay(versions if opponent == "pool" else 0, period)


def opponent_run(opponent: str) -> str | None:
    """Returns the directory of the run that an opponent names; None: it names none."""
    return opponent if isinstance(opponent, str) and os.sep in opponent else None
