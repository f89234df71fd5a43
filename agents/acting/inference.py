"""Inference for actors that hold no parameters: their observations, batched, through one policy."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ..interfaces import ActorCore
from ..programs.placement import Partition
from ..programs.policy import PolicyProgram
from ..variables.client import VariableClient
from .sessions import Answer, Leaves, Request, SessionServer

Nest = Any


class InferenceServer(SessionServer):
    """Runs one policy for the actors that ask, several of them in one call to the device.

    Rows over calls are the mean batch.
    """

    def __init__(
        self,
        policy: ActorCore,
        client: VariableClient,
        observation_spec: Nest,
        *,
        batch_size: int,
        wait_seconds: float = 0.002,
        capacity: int | None = None,
        device: jax.Device | Partition | None = None,
    ):
        """Compiles nothing yet (see `warm_up`).

        Args:
          policy: written for one observation.
          client: where its parameters come from.
          observation_spec: of one environment.
          batch_size, wait_seconds, capacity: as of `SessionServer`.
          device: that computes the policy, or a mesh; as of `PolicyProgram`.

        Raises:
          ValueError: if one of them is out of its range.
        """
        super().__init__(observation_spec, batch_size, wait_seconds, capacity)
        self._client = client
        self._program = PolicyProgram(policy, self._capacity, device=device, placed=client.place_by)
        full = 1 << (batch_size - 1).bit_length()
        # Over a mesh every size is planned anew, and has to divide: there is but one.
        self._least = full if isinstance(device, Partition) else 1
        self._program.clear()

    def warm_up(self, while_waiting: Callable[[], None] = lambda: None) -> None:
        """Compiles for every size that a batch is padded to, up to a full one."""
        size = self._least
        while size < 2 * self._batch_size:
            while_waiting()
            observation = [np.repeat(x, size, 0) for x in jax.tree.leaves(self._observation)]
            self._step(observation, np.ones(size, bool), np.full(size, self._capacity, np.int32))
            size *= 2

    def serve_once(self, seconds: float) -> int:
        """Answers one batch.

        Args:
          seconds: time to wait for a request.

        Returns:
          Rows answered; 0 where none came.
        """
        batch = self._collect(seconds)
        if not batch:
            return 0
        counts = [len(request.first) for request in batch]
        try:
            answers = self._run(batch)
        except Exception as error:
            self._failed(batch, error)
        else:
            bounds = np.cumsum([0, *counts])
            for request, start, stop in zip(batch, bounds[:-1], bounds[1:], strict=True):
                action, extras = ([x[start:stop] for x in part] for part in answers)
                request.answer = (action, extras)
                request.done.set()
        self.calls += 1
        self.rows += sum(counts)
        return sum(counts)

    def _failed(self, batch: list[Request], error: Exception) -> None:
        """Forgets those whose streams are in no known state."""
        with self._arrived:
            for client, held in list(self._sessions.items()):
                if held.last in batch or self._program.is_lost:
                    self._release(client, f"the policy's state was lost: {error}")
            if self._program.is_lost:
                self._program.clear()
        for request in batch:
            request.fail(error)

    def _collect(self, seconds: float) -> list[Request]:
        """Requests of one batch: at least one, at most `batch_size` rows where there are more."""

        def rows() -> int:
            return sum(len(request.first) for request in self._queue)

        with self._arrived:
            if not self._arrived.wait_for(lambda: bool(self._queue), seconds):
                return []
            full = time.monotonic() + self._wait
            while rows() < self._batch_size and (left := full - time.monotonic()) > 0:
                self._arrived.wait(left)
            batch: list[Request] = []
            size = 0
            while self._queue and (
                not batch or size + len(self._queue[0].first) <= self._batch_size
            ):
                batch.append(self._queue.popleft())
                size += len(batch[-1].first)
            if self._capacity > self._program.num_streams:
                self._program.grow(self._capacity)
            return batch

    def _run(self, batch: list[Request]) -> Answer:
        """Steps the rows of a batch, padded to a power of two, with one call to the device."""
        leaves = [np.concatenate(rows) for rows in zip(*(r.leaves for r in batch), strict=True)]
        first = np.concatenate([request.first for request in batch])
        rows = np.concatenate([request.rows for request in batch])
        count = len(first)
        if padding := max(self._least, 1 << (count - 1).bit_length()) - count:
            leaves = [np.concatenate([x, np.repeat(x[-1:], padding, 0)]) for x in leaves]
            first = np.concatenate([first, np.repeat(first[-1:], padding, 0)])
            rows = np.concatenate([rows, np.full(padding, self._program.num_streams, np.int32)])
        for request in batch:
            if request.begin is not None:
                words, first_stream, num_actions = request.begin
                keys = jax.random.wrap_key_data(jnp.asarray(words))
                self._program.begin(request.rows, keys, first_stream, num_actions)
        self._client.update()
        return self._step(leaves, first, rows)

    def _step(self, leaves: Leaves, first: np.ndarray, rows: np.ndarray) -> Answer:
        observation = jax.tree.unflatten(jax.tree.structure(self._observation), leaves)
        action, extras = self._program(self._client.params, observation, first, rows)
        return jax.tree.leaves(action), jax.tree.leaves(extras)
