"""The one learner of every agent: it feeds batches to an update and hands out parameters."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import numpy as np

from ..interfaces import Update, UpdateOutput
from ..replay.items import Sample
from ..snapshots import from_host, to_host
from . import dispatch, gang
from .mesh import Partition, make_dispatch

Nest = Any


class Learner:
    """Runs an update, K gradient steps a dispatch.

    Args:
      update: the agent's learning, in pure functions.
      samples: batches as `Sample`, every array [K, B, ...].
      key: for `update.init`.
      steps_per_dispatch: K.
      write_priorities: `(keys [K, B], priorities [K, B]) -> None`, where the replay is prioritised.
      device: where the update runs; None: jax's default device.
      partition: a mesh and tactics to run the update with instead; `device` is then where the
        variables are gathered for actors.

    Attributes:
      steps: gradient steps taken.
      version: changes whenever there are new variables.
    """

    def __init__(
        self,
        update: Update,
        samples: Iterator[Sample],
        key: jax.Array,
        *,
        steps_per_dispatch: int = 1,
        write_priorities: Callable[[np.ndarray, np.ndarray], None] | None = None,
        device: jax.Device | None = None,
        partition: Partition | None = None,
    ):
        self._update = update
        self._samples = samples
        self._steps_per_dispatch = steps_per_dispatch
        self._write_priorities = write_priorities
        self._device = device or jax.local_devices()[0]
        self._state = jax.device_put(jax.jit(update.init)(key), self._device)
        self._variables = jax.jit(update.variables)(self._state)
        self._dispatch: Any = None
        if partition is not None:
            self._dispatch = make_dispatch(update, partition, steps_per_dispatch, self._device)
        self._output: UpdateOutput | None = None
        self._unwritten: tuple[np.ndarray, jax.Array] | None = None
        self.steps = 0
        self.version = 0

    def _compile(self, sample: Sample) -> Callable:
        """The program of one dispatch: (state, sample) -> (state, output, variables).

        The variables are outputs of their own, so that the state can be donated while actors
        still hold the variables of an earlier version.
        """
        step, on_cpu = self._update.step, self._device.platform == "cpu"
        batch = jax.tree.map(lambda x: x[0], sample)
        unroll = on_cpu and dispatch.holds_convolution(step, self._state, batch)
        if self._update.steps is not None:
            fused = self._update.steps(self._steps_per_dispatch, unroll)
        else:
            fused = dispatch.fuse(step, self._steps_per_dispatch, unroll=unroll)

        def run(state, sample):
            state, output = fused(state, sample)
            return state, output, self._update.variables(state)

        return jax.jit(run, donate_argnums=0)

    def step(self) -> None:
        """Takes one batch and K gradient steps."""
        sample = next(self._samples)
        if self._dispatch is None:
            self._dispatch = self._compile(sample)
        self._state, self._output, self._variables = self._dispatch(self._state, sample)
        self.steps += self._steps_per_dispatch
        self.version += 1
        if self._write_priorities is not None and self._output.priorities is not None:
            # On CPU the result is there already. Elsewhere the previous dispatch's is written, so
            # that nothing waits for the device.
            pending = (sample.info.keys, self._output.priorities)
            if self._device.platform == "cpu":
                self._write(pending)
            else:
                self._unwritten, pending = pending, self._unwritten
                self._write(pending)

    def _write(self, pending: tuple[np.ndarray, jax.Array] | None) -> None:
        if pending is not None and self._write_priorities is not None:
            self._write_priorities(pending[0], np.asarray(pending[1]))

    def run(self, num_steps: int | None = None) -> None:
        """Steps until `num_steps` dispatches are done; for ever where it is None."""
        done = 0
        while num_steps is None or done < num_steps:
            self.step()
            done += 1

    def get_variables(self, names: Sequence[str] = ("policy",)) -> list[Nest]:
        unknown = [name for name in names if name not in self._variables]
        if unknown:
            raise KeyError(f"No variables named {unknown}; there are {sorted(self._variables)}.")
        return [self._variables[name] for name in names]

    @property
    def variable_names(self) -> tuple[str, ...]:
        """What `get_variables` knows, sorted."""
        return tuple(sorted(self._variables))

    def metrics(self) -> dict[str, float]:
        """The last gradient step's metrics. Waits for the device."""
        if self._output is None:
            return {}
        return {name: float(values[-1]) for name, values in self._output.metrics.items()}

    def save(self) -> Nest:
        """All that learning changed, as numpy arrays. In a gang every process must call it."""
        self._write(self._unwritten)
        self._unwritten = None
        return {"steps": np.int64(self.steps), "state": to_host(gang.whole(self._state))}

    def restore(self, state: Nest) -> None:
        self._state = jax.device_put(from_host(state["state"], self._state), self._device)
        self._variables = jax.jit(self._update.variables)(self._state)
        self.steps = int(state["steps"])
        self.version += 1
