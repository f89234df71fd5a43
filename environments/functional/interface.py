"""An environment as pure functions, which JAX compiles into the program of whoever steps it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax

from ..specs import Nest
from .games import Opponent, SelfPlay

Key = jax.Array
State = Any
"""A pytree of arrays: all that an environment remembers between two steps."""


class StepOutput(NamedTuple):
    """Output of one step of one environment."""

    observation: Nest
    """Fits the environment's spec; at the end of an episode it is the final observation."""
    reward: jax.Array
    """float32 []"""
    terminated: jax.Array
    """bool []: the episode is over, and nothing would follow"""
    truncated: jax.Array
    """bool []: the episode is over, for a reason outside of the task, such as a time limit"""


class FunctionalEnvironment(NamedTuple):
    """One environment: pure functions without a batch dimension, and what they give and take.

    `streams` steps N of them, begins their episodes and makes `dm_env.TimeStep`s of what they give.
    An environment itself begins nothing: what it does after the end of an episode is never seen.

    Attributes:
      reset: `key -> (state, observation)`, begins an episode.
      step: `(state, action, key) -> (state, StepOutput)`. The key is for this step alone.
      observations: nest of `dm_env.specs`, of 32 bits at the most.
      actions: likewise.
      max_episode_steps: steps after which `transforms.time_limit` truncates an episode; None: it
        has no limit, or one of its own.
      against: `opponent -> environment`, the same game against another; None: nobody else plays.
      self_play: how whoever trains is to choose opponents; None: they are as they come. `reset` and
        `step` are in any case against the opponent that evaluations have.
      opponent_run: directory of a run whose policy plays against whoever trains; None: nobody's.
    """

    reset: Callable[[Key], tuple[State, Nest]]
    step: Callable[[State, Nest, Key], tuple[State, StepOutput]]
    observations: Nest
    actions: Nest
    max_episode_steps: int | None = None
    against: Callable[[Opponent], FunctionalEnvironment] | None = None
    self_play: SelfPlay | None = None
    opponent_run: str | None = None
