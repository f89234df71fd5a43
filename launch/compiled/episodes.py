"""Whole episodes as one program: those that `evaluation.evaluator.play` would play."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import dm_env
import jax
import jax.numpy as jnp
import numpy as np

from ...agents.acting import opponents, policies
from ...agents.interfaces import ActorCore
from ...agents.programs import lanes
from ...environments.functional import FunctionalEnvironment, streams
from .layout import Layout
from .program import AXIS, Settings, over_runs

Nest = Any
_FIRST, _LAST = int(dm_env.StepType.FIRST), int(dm_env.StepType.LAST)
TURNS = 1000
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


class EpisodePrograms:
    """Plays episodes of S runs at once, each with parameters and environments of its own."""

    def __init__(
        self,
        make_policy: Callable[[Settings], ActorCore],
        make_opponent: Callable[[Settings], ActorCore],
        settings: Settings,
        num_runs: int | None,
        layout: Layout,
    ):
        """Compiles nothing yet.

        Args:
          make_policy: makes the policy that is judged, from the settings of a run.
          make_opponent: makes that of its opponents, likewise.
          settings: of all runs.
          num_runs: S; None: one run, whose arrays have no leading dimension.
          layout: of its arrays.
        """
        self._make_policy, self._make_opponent = make_policy, make_opponent
        self._num_runs, self._layout = num_runs, layout
        self._settings = jax.device_put(dict(settings), layout.sharding)
        self._compiled: dict[tuple[int, int, bool], Any] = {}

    def play(
        self,
        environment: FunctionalEnvironment,
        episodes: int,
        keys: jax.Array,
        key: jax.Array,
        params: Nest,
        stopped: Callable[[], bool],
        opponent: Nest = (),
    ) -> np.ndarray | None:
        """Plays E whole episodes in N environments.

        Args:
          environment: the same at every call with these E and N.
          episodes: E.
          keys: [S, N], of the environments.
          key: [S], of the policies' states.
          params: of the policies, [S, ...].
          stopped: asked now and then whether nobody wants to know any more.
          opponent: parameters of an opponent, [S, ...]; (): the environment's own.

        Returns:
          Returns [S, E]; None: it was stopped.
        """
        kind = keys.shape[-1], episodes, bool(jax.tree.leaves(opponent))
        if kind not in self._compiled:
            self._compiled[kind] = self._compile(environment, *kind)
        begin, go_on = self._compiled[kind]
        # Keys are made on the host; where they lie, the environments begin.
        given = jax.device_put((keys, key, params, opponent), self._layout.sharding)
        keys, key, params, opponent = given
        playing, unfinished = begin(self._settings, opponent, keys, key), True
        while np.any(unfinished):
            if stopped():
                return None
            playing, unfinished = go_on(self._settings, opponent, playing, params)
        return np.asarray(playing.returns)

    def _compile(
        self, environment: FunctionalEnvironment, n: int, episodes: int, is_opposed: bool
    ) -> tuple[Any, Any]:
        """Returns functions that begin, and that go on for `TURNS` and tell what is left."""
        quota = jnp.asarray([(episodes - i + n - 1) // n for i in range(n)])
        axis = None if self._num_runs is None else AXIS

        def opposed(settings: Settings, opponent: Nest) -> FunctionalEnvironment:
            if not is_opposed:
                return environment
            return opponents.facing(environment, self._make_opponent(settings), opponent)

        def begin(settings: Settings, opponent: Nest, keys: jax.Array, key: jax.Array) -> Playing:
            policy = self._make_policy(settings)
            begun, timestep = streams.reset(opposed(settings, opponent), keys)
            states = policies.begin(policy, jax.random.split(key, n))
            zeros = jnp.zeros(n)
            return Playing(begun, timestep, states, zeros, jnp.zeros(episodes), jnp.zeros(n, int))

        def unfinished(playing: Playing) -> jax.Array:
            return (playing.played < quota).any()

        def turn(
            environment: FunctionalEnvironment, act: Any, playing: Playing, params: Nest
        ) -> Playing:
            first = playing.timestep.step_type == _FIRST
            action, _, states = act(params, playing.timestep.observation, playing.policy, first)
            begun, timestep = streams.step(environment, playing.streams, action)
            totals, last = playing.totals + timestep.reward, timestep.step_type == _LAST
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

        def go_on(
            settings: Settings, opponent: Nest, playing: Playing, params: Nest
        ) -> tuple[Playing, jax.Array]:
            game = opposed(settings, opponent)
            act = policies.batch(self._make_policy(settings))

            def more(carry: tuple[Playing, jax.Array]) -> jax.Array:
                return unfinished(carry[0]) & (carry[1] < TURNS)

            # A run that is done plays on: episodes beyond its number are not kept.
            def one(carry: tuple[Playing, jax.Array], active: Any) -> tuple[Playing, jax.Array]:
                return turn(game, act, carry[0], params), carry[1] + 1

            playing, _ = lanes.while_any(more, one, (playing, jnp.int32(0)), axis)
            return playing, unfinished(playing)

        begin, go_on = (
            self._layout.over_devices(over_runs(fn, self._num_runs), [True] * 4)
            for fn in (begin, go_on)
        )
        return jax.jit(begin), jax.jit(go_on, donate_argnums=2)
