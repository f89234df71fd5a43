"""The adder of a replay in a Reverb server."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import dm_env
import numpy as np
import reverb
from dm_env import StepType

from ....environments import specs
from ..items import ReplaySpec
from ..nests import Nest
from .largest import LargestPriority
from .stream import PATIENCE_MS, Stream
from .wire import Wire

_FIRST = int(StepType.FIRST)


class ReverbAdder:
    """Writes the steps of an actor's environments, each through a writer of its own.

    It has the calls of `EmbeddedAdder`. While the pace, or a server that does not answer, holds it
    up, it calls `while_waiting` every half second, which may raise to end the wait. When a server
    is back after a failure, each stream goes on with its next episode.
    """

    def __init__(
        self,
        spec: ReplaySpec,
        environment_spec: Any,
        extras_spec: Nest,
        address: str,
        *,
        num_envs: int | None = None,
        while_waiting: Callable[[], None] | None = None,
    ) -> None:
        """Opens nothing yet.

        Args:
          spec: As the server's tables were made from.
          environment_spec: Likewise.
          extras_spec: Likewise.
          address: Of the server, host:port.
          num_envs: N, or None for one environment whose values have no dimension for it.
          while_waiting: Called again and again during a wait.
        """
        self._wire = Wire(spec, environment_spec, extras_spec)
        self._lead = () if num_envs is None else (num_envs,)
        self._wait = while_waiting or (lambda: None)
        self._largest = LargestPriority(address) if spec.priority_exponent is not None else None
        self._streams = [
            Stream(spec, self._wire, reverb.Client(address), self._largest)
            for _ in range(num_envs or 1)
        ]
        self._checked = False

    def add_first(self, timestep: dm_env.TimeStep) -> None:
        """Begins an episode in every stream.

        Raises:
          ValueError: If the time step is not the first of an episode, or does not fit the spec.
        """
        if np.any(np.asarray(timestep.step_type) != _FIRST):
            raise ValueError(f"add_first got the step type {timestep.step_type}, not FIRST.")
        self._wire.structures["observation"].check(timestep.observation, self._lead)
        observation = self._rows("observation", timestep.observation)
        waits = np.zeros(1, bool)
        if self._lead:
            waits = specs.waiting(timestep.step_type, timestep.discount)
        for i, stream in enumerate(self._streams):
            self._guard(stream, stream.first, observation[i], not self._lead, bool(waits[i]))

    def add(self, action: Nest, next_timestep: dm_env.TimeStep, extras: Nest = ()) -> None:
        """Adds an action and the time step that followed it.

        Raises:
          ValueError: If values do not fit their specs, or no episode was begun.
        """
        structures = self._wire.structures
        if not self._checked:
            structures["action"].check(action, self._lead)
            structures["extras"].check(extras, self._lead)
            self._checked = True
        answers = [
            a + e
            for a, e in zip(self._rows("action", action), self._rows("extras", extras), strict=True)
        ]
        observations = self._rows("observation", next_timestep.observation)
        rewards = np.reshape(next_timestep.reward, -1).tolist()
        discounts = np.reshape(next_timestep.discount, -1).tolist()
        kinds = np.reshape(np.asarray(next_timestep.step_type, np.int32), -1).tolist()
        rows = zip(answers, rewards, discounts, observations, kinds, strict=True)
        for stream, row in zip(self._streams, rows, strict=True):
            self._guard(stream, stream.add, *row)

    def reset(self) -> None:
        """Drops what is not complete; `add_first` must come next."""
        for stream in self._streams:
            stream.pause()

    def flush(self, timeout_ms: int | None = None) -> None:
        """Waits until the server has all complete items."""
        for stream in self._streams:
            stream.flush(0, timeout_ms)

    def close(self) -> None:
        """Sends what is complete, for at most a moment, and closes the writers."""
        for stream in self._streams:
            with contextlib.suppress(reverb.ReverbError, RuntimeError):
                stream.flush(0, PATIENCE_MS)
            stream.drop()

    def _rows(self, name: str, value: Nest) -> list[list[np.ndarray]]:
        """For every stream the leaves of a field, as rows keep them."""
        leaves = self._wire.leaves[name]
        values = (
            [np.asarray(part) for part in self._wire.structures[name].flatten(value)]
            if leaves
            else []
        )
        if not self._lead:
            return [[leaf.newest(part) for leaf, part in zip(leaves, values, strict=True)]]
        return [
            [leaf.newest(part[i]) for leaf, part in zip(leaves, values, strict=True)]
            for i in range(self._lead[0])
        ]

    def _guard(self, stream: Stream, step: Callable[..., None], *arguments: Any) -> None:
        """Takes a step of a stream, and waits as long as it must."""
        try:
            step(*arguments)
            while not stream.delivered():
                self._wait()
        except (reverb.ReverbError, RuntimeError):
            # The server is gone, and with it what this stream had in flight.
            stream.drop()
            self._wait()
