"""Judging a policy in one program: the episodes that `evaluation.evaluator.play` would play."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ...agents.acting import policies
from ...agents.interfaces import ActorCore
from ...environments.functional import FunctionalEnvironment, FunctionalVector, streams
from ..evaluation.evaluator import Evaluator
from ..signals import Stop

Nest = Any
_TURNS = 1000
"""Of one call, after which signals are looked at."""


class Playing(NamedTuple):
    """N environments in which E episodes are played."""

    streams: streams.Streams
    timestep: Any
    policy: Nest
    totals: jax.Array
    """float32 [N], of the present episodes"""
    returns: jax.Array
    """float32 [E]: environment i plays the i-th of every N"""
    played: jax.Array
    """int32 [N]: episodes ended"""


class CompiledEvaluator(Evaluator):
    """An evaluator whose environments are written in JAX."""

    def __init__(self, *arguments: Any, **options: Any):
        """Takes what an `Evaluator` does."""
        super().__init__(*arguments, **options)
        self._programs: dict[tuple[int, int], Any] = {}

    def _play(self, environment: Any, episodes: int, stop: Stop) -> list[float] | None:
        if not isinstance(environment, FunctionalVector):  # Judged in another than it learns in.
            return super()._play(environment, episodes, stop)
        n = environment.num_envs
        if (n, episodes) not in self._programs:
            self._programs[n, episodes] = _compile(environment.functions, self._policy, n, episodes)
        begin, go_on, unfinished = self._programs[n, episodes]
        (params,) = self._source.get_variables(("policy",))
        playing = begin(environment.keys, self._key)
        while unfinished(playing):
            if stop.requested:
                return None
            playing = go_on(playing, params)
        return np.asarray(playing.returns).tolist()


def _compile(
    environment: FunctionalEnvironment, policy: ActorCore, num_envs: int, episodes: int
) -> tuple[Any, Any, Any]:
    """Returns functions that begin, go on for `_TURNS`, and tell whether episodes are left."""
    act, n = policies.batch(policy), num_envs
    quota = jnp.asarray([(episodes - i + n - 1) // n for i in range(n)])

    def begin(keys: jax.Array, key: jax.Array) -> Playing:
        begun, timestep = streams.reset(environment, keys)
        states = policies.begin(policy, jax.random.split(key, n))
        zeros = jnp.zeros(n)
        return Playing(begun, timestep, states, zeros, jnp.zeros(episodes), jnp.zeros(n, int))

    def unfinished(playing: Playing) -> jax.Array:
        return (playing.played < quota).any()

    def turn(playing: Playing, params: Nest) -> Playing:
        first = playing.timestep.step_type == 0
        action, _, states = act(params, playing.timestep.observation, playing.policy, first)
        begun, timestep = streams.step(environment, playing.streams, action)
        totals, last = playing.totals + timestep.reward, timestep.step_type == 2
        places = jnp.arange(n) + n * playing.played
        places = jnp.where(last & (playing.played < quota), places, episodes)
        return Playing(
            begun,
            timestep,
            states,
            jnp.where(last, 0.0, totals),
            playing.returns.at[places].set(totals, mode="drop"),
            playing.played + last,
        )

    def go_on(playing: Playing, params: Nest) -> Playing:
        def more(carry: tuple[Playing, jax.Array]) -> jax.Array:
            return unfinished(carry[0]) & (carry[1] < _TURNS)

        def one(carry: tuple[Playing, jax.Array]) -> tuple[Playing, jax.Array]:
            return turn(carry[0], params), carry[1] + 1

        return jax.lax.while_loop(more, one, (playing, jnp.int32(0)))[0]

    return jax.jit(begin), jax.jit(go_on, donate_argnums=0), jax.jit(unfinished)
