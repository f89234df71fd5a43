"""The loop of one run or of several, compiled: every array of several has a leading dimension S."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from ...agents.programs import compilation, convolutions
from ...agents.programs.whole_loop import LoopState, Progress, WholeLoop
from .layout import Layout

Nest = Any
Settings = Mapping[str, jax.Array]
"""Numbers of an agent's config in which the runs differ, [S] each, by field."""
AXIS = "runs"


def over_runs(fn: Callable[..., Any], num_runs: int | None, **options: Any) -> Callable[..., Any]:
    """Returns a function of S runs, made from that of one; None: there is one, as it is."""
    return fn if num_runs is None else jax.vmap(fn, axis_name=AXIS, **options)


class LoopProgram:
    """The compiled functions of a loop's state; `advance` goes on with all runs in lockstep.

    Attributes:
      layout: of its arrays.
      loop: of one run, without settings.
    """

    def __init__(
        self,
        make: Callable[[Settings, str | None], WholeLoop],
        settings: Settings,
        num_runs: int | None,
        layout: Layout,
    ):
        """Compiles nothing yet.

        Args:
          make: makes the loop of a run from its settings, which may be traced, and the name of the
            axis of runs.
          settings: of all runs.
          num_runs: S; None: one run, whose arrays have no leading dimension.
          layout: of its arrays.
        """
        self._settings = jax.device_put(dict(settings), layout.sharding)
        self._num_runs, self.layout = num_runs, layout
        self._axis = None if num_runs is None else AXIS
        self._make, self.loop = make, make({}, None)

        def init(settings: Settings, *keys: jax.Array) -> LoopState:
            return make(settings, self._axis).init(*keys)

        def advance(
            settings: Settings, state: LoopState, key: jax.Array, until: jax.Array, turns: jax.Array
        ) -> tuple[LoopState, Progress]:
            loop = make(settings, self._axis)
            state = loop.advance(state, key, until, turns)
            return state, loop.progress(state)

        begin = layout.over_devices(over_runs(init, num_runs), [True] * 4)
        run = over_runs(advance, num_runs, in_axes=(0, 0, 0, 0, None))
        run = layout.over_devices(run, [True] * 4 + [False])
        self._begin, self._run = begin, convolutions.for_device(run, layout.device)

    def init(
        self, stream_keys: jax.Array, actor_keys: jax.Array, learner_keys: jax.Array
    ) -> LoopState:
        """Returns the first state, on the devices. Args: as of `WholeLoop.init`, of all runs."""
        keys = jax.device_put((stream_keys, actor_keys, learner_keys), self.layout.sharding)
        self._shardings = self.layout.shardings(jax.eval_shape(self._begin, self._settings, *keys))
        begin = compilation.compile_once(
            self._begin, self.layout.device, out_shardings=self._shardings
        )
        state: LoopState = self.layout.call(begin, self._settings, *keys)
        return state

    def advance(
        self, state: LoopState, keys: jax.Array, until: Any, turns: int
    ) -> tuple[LoopState, Progress]:
        """Goes on as of `WholeLoop.advance`, with every run until a step of its own.

        Args:
          state: is donated.
          keys: of the draws from each replay.
          until: of every run; one that has taken so many steps is left as it is.
          turns: of all.

        Returns:
          The state, and what is to be looked at.
        """
        counts = jnp.asarray(until, jnp.int32), jnp.int32(turns)
        found: tuple[LoopState, Progress] = self.layout.call(
            self._advance, self._settings, state, keys, *counts
        )
        return found

    def read(self, state: LoopState, index: int, select: Callable[..., Nest]) -> Nest:
        """Returns what a function takes from the state of one run.

        Args:
          state: of all.
          index: of the run.
          select: `(loop, state) -> nest`, both of one run; compiled once for each such function.

        Returns:
          Arrays that may be those of the state, where there is one run: good until it goes on.
        """
        part, place = self.layout.part((self._settings, state), index)
        return self.layout.call(self._reader(select), *part, place)

    def change(
        self, state: LoopState, index: int, change: Callable[..., LoopState], *arguments: Nest
    ) -> LoopState:
        """Returns a state, which is donated, in which one run's is another.

        Args:
          state: of all.
          index: of the run.
          change: `(loop, state, *arguments) -> state`, of one run; compiled once.
          *arguments: arrays.
        """
        changed: LoopState = self.layout.call(
            self._changer(change), self._settings, state, index, arguments
        )
        return changed

    @functools.cached_property
    def _advance(self) -> Callable[..., tuple[LoopState, Progress]]:
        out = self._shardings, self.layout.sharding
        return jax.jit(self._run, donate_argnums=1, out_shardings=out)

    @functools.cache  # noqa: B019 - as long as the run.
    def _reader(self, select: Callable[..., Nest]) -> Callable[..., Nest]:
        def read(settings: Settings, state: LoopState, index: jax.Array) -> Nest:
            settings, state = self._of_run((settings, state), index)
            return select(self._make(settings, None), state)

        return jax.jit(read)

    @functools.cache  # noqa: B019 - as long as the run.
    def _changer(self, change: Callable[..., LoopState]) -> Callable[..., LoopState]:
        def put(
            settings: Settings, state: LoopState, index: jax.Array, arguments: Sequence[Nest]
        ) -> LoopState:
            place = self.layout.place(index, jax.tree.leaves(state)[0].shape[0])
            own, before = self._of_run((settings, state), place)
            after = change(self._make(own, None), before, *arguments)
            if self._num_runs is None:
                return after
            # Nowhere on a device that does not hold the run.
            return jax.tree.map(
                lambda leaf, new: leaf.at[place].set(new, mode="drop"), state, after
            )

        put = self.layout.over_devices(put, [True, True, False, False])
        return jax.jit(put, donate_argnums=1, out_shardings=self._shardings)

    def _of_run(self, nest: Nest, index: jax.Array) -> Nest:
        return nest if self._num_runs is None else jax.tree.map(lambda leaf: leaf[index], nest)
