"""The one learner of every agent: it feeds batches to an update and hands out parameters."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import numpy as np

from ..interfaces import Update, UpdateOutput
from ..programs.dispatch import strongly_typed
from ..programs.mesh import MeshProgram
from ..programs.placement import Partition
from ..programs.plain import LearnerProgram, PlainProgram
from ..replay.items import Sample
from ..snapshots import check, from_host, to_host, word_shapes, words_of

Nest = Any


def saved_like(update: Update) -> Nest:
    """Returns the spec of what a learner of this update saves, as `jax.ShapeDtypeStruct`."""
    shapes = jax.eval_shape(update.init, jax.random.key(0))
    return {"steps": jax.ShapeDtypeStruct((), np.int64), "state": word_shapes(shapes)}


def saved_variables(update: Update, saved: Nest) -> dict[str, Nest]:
    """The variables in what a learner of this update saved, without the learner.

    Raises:
      ValueError: if it is of another agent, naming the path.
    """
    shapes = jax.eval_shape(update.init, jax.random.key(0))
    return update.variables(from_host(saved["state"], shapes))


def variable_shapes(update: Update) -> dict[str, Nest]:
    """The variables of an update, as `jax.ShapeDtypeStruct`."""
    return jax.eval_shape(update.variables, jax.eval_shape(update.init, jax.random.key(0)))


class SGDLearner:
    """Runs an update, K gradient steps a dispatch.

    Args:
      update: the agent's learning, in pure functions.
      samples: batches as `Sample`, every array [K, B, ...].
      key: for `update.init`.
      steps_per_dispatch: K.
      write_priorities: `(keys [K, B], priorities [K, B]) -> None`, where the replay is prioritised.
      device: where the update runs; None: jax's default device.
      partition: a mesh and tactics to run the update with instead; `device` is then where actors
        find variables.
      shapes: of `samples`; None: a partitioned learner draws the first of them at once.

    Attributes:
      steps: gradient steps taken.
      version: counts up whenever there are new variables.
      remarks: the update's.
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
        shapes: Sample | None = None,
    ):
        update = strongly_typed(update)
        self.remarks = update.remarks
        self._samples, self._key = samples, key
        self._steps_per_dispatch = steps_per_dispatch
        self._write_priorities = write_priorities
        self._device = device or jax.local_devices()[0]
        self._program: LearnerProgram
        self._state: Nest = None
        if partition is None:
            self._program = PlainProgram(update, steps_per_dispatch, self._device, key)
            self._state = self._program.init(key)
        else:
            if shapes is None:
                shapes = next(samples)
                self._samples = itertools.chain([shapes], samples)
            self._program = MeshProgram(
                update, partition, steps_per_dispatch, self._device, key, shapes
            )
        self._names = tuple(sorted(jax.eval_shape(update.variables, self._program.state_shapes)))
        self._variables: dict[tuple[str, ...], list[Nest]] = {}
        self._output: UpdateOutput | None = None
        self._unwritten: tuple[np.ndarray, jax.Array] | None = None
        self.steps = 0
        self.version = 0

    @property
    def state(self) -> Nest:
        """All that learning changes.

        That of a partitioned learner is made when it is first needed: one that is restored before
        never holds two.
        """
        return self._program.unpacked(self._held())

    def _held(self) -> Nest:
        """The state as the program holds it."""
        if self._state is None:
            self._state = self._program.init(self._key)
        return self._state

    @property
    def plan(self) -> Any:
        """The `partitioning.Plan` of one gradient step; None: it runs on one device."""
        return getattr(self._program, "plan", None)

    def place(self, sample: Sample) -> Sample:
        """A batch with its arrays on the devices that learn from it, its keys on the host.

        For whoever reads batches ahead, in any thread.
        """
        placed = self._program.place(sample)
        return placed._replace(info=placed.info._replace(keys=sample.info.keys))

    def step(self) -> None:
        """Takes one batch and K gradient steps."""
        sample = next(self._samples)
        self._state, self._output = self._program(self._held(), sample)
        self._variables.clear()
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
        """The named collections, copied and gathered when they are first asked for.

        In a gang every process must ask; see `assist`.
        """
        names = tuple(names)
        unknown = [name for name in names if name not in self._names]
        if unknown:
            raise KeyError(f"No variables named {unknown}; there are {sorted(self._names)}.")
        if names not in self._variables:
            self._variables[names] = self._program.variables(self._held(), names)
        return list(self._variables[names])

    def variables_on_mesh(self, names: Sequence[str]) -> list[Nest]:
        """The named collections as the mesh of a partitioned learner holds them, ungathered.

        In a gang every process must ask.

        Raises:
          ValueError: if it has no mesh.
        """
        if not isinstance(self._program, MeshProgram):
            raise ValueError(
                "the learner runs on one device, so that nobody can act on its mesh; give it a "
                "partition, or have actors compute on cpu, gpu or tpu"
            )
        return self._program.variables_on_mesh(self._held(), tuple(names))

    def assist(self, names: Sequence[str]) -> None:
        """Takes part where another process of the gang gets variables, and keeps nothing."""
        self._program.variables(self._held(), names, keep=False)

    @property
    def variable_names(self) -> tuple[str, ...]:
        """Names that `get_variables` knows, sorted."""
        return self._names

    def metrics(self) -> dict[str, float]:
        """The last gradient step's metrics. Waits for the device."""
        if self._output is None:
            return {}
        return {
            name: float(np.asarray(values)[-1]) for name, values in self._output.metrics.items()
        }

    @property
    def saved_shapes(self) -> Nest:
        """Spec of what `save` gives, as `jax.ShapeDtypeStruct`, with shardings if partitioned."""
        return {
            "steps": jax.ShapeDtypeStruct((), np.int64),
            "state": word_shapes(self._program.state_shapes),
        }

    def live_state(self) -> Nest:
        """All that learning changed, where it lies; PRNG keys as their words.

        Gone with the next step. In a gang every process must call it.
        """
        self._write(self._unwritten)
        self._unwritten = None
        return {"steps": np.int64(self.steps), "state": jax.tree.map(words_of, self.state)}

    def save(self) -> Nest:
        """All that learning changed; PRNG keys as their words.

        On one device these are numpy arrays. Those of a partitioned learner stay where they are
        and are gone with the next step; in a gang every process must call it.
        """
        state = self.live_state()
        return state if isinstance(self._program, MeshProgram) else to_host(state)

    def restore(self, state: Nest) -> None:
        """Takes back what `save` gave, of this learner or of one on other devices.

        Arrays that lie on a partitioned learner's devices as its own do become its own.

        Raises:
          ValueError: if it is of another agent, naming the path.
        """
        check(state["state"], self.saved_shapes["state"])
        self._state = None  # Before the other is made: the two need not fit together.
        self._state = self._program.put(state["state"])
        self._variables.clear()
        self.steps = int(state["steps"])
        self.version += 1
