"""Inference for actors that hold no parameters: their observations, batched, through one policy.

The policy's state stays with the actor and travels with each request, so that an inference server
can be lost and replaced at any moment, and any of several will do.
"""

from __future__ import annotations

import collections
import threading
import time
from collections.abc import Callable
from typing import Any, Protocol, runtime_checkable

import jax
import numpy as np

from ..interfaces import ActorCore, VariableSource
from ..networks.core import dummy
from ..snapshots import to_host, typed
from ..variables.client import VariableClient
from . import policies

Nest = Any
Leaves = list[np.ndarray]
Answer = tuple[Leaves, Leaves, Leaves]


@runtime_checkable
class InferenceSource(VariableSource, Protocol):
    """A source that, in place of variables, gives the actions that a server chose with them."""

    def infer(self, leaves: Leaves, first: np.ndarray) -> Answer:
        """See `InferenceServer.infer`."""


class _Request:
    """The rows of one actor, [n, ...] each, and the answer to them."""

    def __init__(self, leaves: Leaves, first: np.ndarray):
        self.leaves, self.first = leaves, first
        self.done = threading.Event()
        self.answer: Answer | None = None
        self.error: BaseException | None = None


class InferenceServer:
    """Runs one policy for the actors that ask, several of them in one call to the device.

    `infer` may be called from many threads; `serve_once` belongs to the thread that has the device.

    Attributes:
      calls: calls to the device so far.
      rows: rows that were answered; over `calls`, the mean batch.
    """

    def __init__(
        self,
        policy: ActorCore,
        client: VariableClient,
        observation_spec: Nest,
        *,
        batch_size: int,
        wait_seconds: float = 0.002,
    ):
        """Nothing is compiled yet (see `warm_up`).

        Args:
          policy: written for one observation.
          client: where its parameters come from.
          observation_spec: of one environment.
          batch_size: rows of a full batch, which is not waited for any longer.
          wait_seconds: how long the first request of a batch waits for others.

        Raises:
          ValueError: if either is out of its range.
        """
        if batch_size < 1:
            raise ValueError(f"batch_size is {batch_size}; it must be at least 1.")
        if wait_seconds < 0:
            raise ValueError(f"wait_seconds is {wait_seconds}; it must be at least 0.")
        self._client = client
        self._batch_size, self._wait = batch_size, wait_seconds
        self._like = jax.jit(jax.vmap(policy.init))(jax.random.split(jax.random.key(0), 1))
        self._observation = dummy(observation_spec, 1)
        self._num_observation = len(jax.tree.leaves(self._observation))
        self._step = jax.jit(policies.batch(policy))
        self._queue: collections.deque[_Request] = collections.deque()
        self._arrived = threading.Condition()
        self.calls = self.rows = 0

    def infer(self, leaves: Leaves, first: np.ndarray, timeout: float = 30.0) -> Answer:
        """Actions for the rows of one actor.

        Args:
          leaves: arrays [n, ...]: those of the observation, then those of the policy's state.
          first: bool [n], whether a row is the first of its episode.
          timeout: seconds after which nobody waits for the answer.

        Returns:
          Leaves of the actions, of the extras and of the new state, [n, ...].

        Raises:
          TimeoutError: if there was no answer in time.
        """
        request = _Request(leaves, first)
        with self._arrived:
            self._queue.append(request)
            self._arrived.notify()
        if not request.done.wait(timeout):
            raise TimeoutError(f"no action within {timeout:g} s.")
        if request.error is not None:
            raise request.error
        assert request.answer is not None
        return request.answer

    def warm_up(self, while_waiting: Callable[[], None] = lambda: None) -> None:
        """Compiles for every size that a batch is padded to, up to a full one."""
        size = 1
        while size < 2 * self._batch_size:
            while_waiting()
            state = to_host(self._like)
            leaves = [*jax.tree.leaves(self._observation), *jax.tree.leaves(state)]
            rows = [np.repeat(leaf, size, 0) for leaf in leaves]
            self._run(rows, np.ones(size, bool))
            size *= 2

    def serve_once(self, seconds: float) -> int:
        """Answers one batch.

        Args:
          seconds: how long to wait for a request.

        Returns:
          Rows answered; 0 where none came.
        """
        batch = self._collect(seconds)
        if not batch:
            return 0
        counts = [len(request.first) for request in batch]
        try:
            leaves = [np.concatenate(rows) for rows in zip(*(r.leaves for r in batch), strict=True)]
            answers = self._run(leaves, np.concatenate([r.first for r in batch]))
            bounds = np.cumsum([0, *counts])
            for request, start, stop in zip(batch, bounds[:-1], bounds[1:], strict=True):
                action, extras, state = ([x[start:stop] for x in part] for part in answers)
                request.answer = (action, extras, state)
        except Exception as error:
            for request in batch:
                request.error = error
        for request in batch:
            request.done.set()
        self.calls += 1
        self.rows += sum(counts)
        return sum(counts)

    def _collect(self, seconds: float) -> list[_Request]:
        """Requests of one batch: at least one, at most `batch_size` rows where there are more."""

        def rows() -> int:
            return sum(len(request.first) for request in self._queue)

        with self._arrived:
            if not self._arrived.wait_for(lambda: bool(self._queue), seconds):
                return []
            full = time.monotonic() + self._wait
            while rows() < self._batch_size and (left := full - time.monotonic()) > 0:
                self._arrived.wait(left)
            batch = [self._queue.popleft()]
            size = len(batch[0].first)
            while self._queue and size + len(self._queue[0].first) <= self._batch_size:
                batch.append(self._queue.popleft())
                size += len(batch[-1].first)
            return batch

    def _run(self, leaves: Leaves, first: np.ndarray) -> Answer:
        """One call to the device, on a number of rows padded to a power of two."""
        count = len(first)
        padding = (1 << (count - 1).bit_length()) - count
        if padding:
            leaves = [np.concatenate([x, np.repeat(x[-1:], padding, 0)]) for x in leaves]
            first = np.concatenate([first, np.repeat(first[-1:], padding, 0)])
        n = self._num_observation
        observation = jax.tree.unflatten(jax.tree.structure(self._observation), leaves[:n])
        state = jax.tree.unflatten(
            jax.tree.structure(self._like),
            [typed(*pair) for pair in zip(leaves[n:], jax.tree.leaves(self._like), strict=True)],
        )
        self._client.update()
        output = self._step(self._client.params, observation, state, first)
        action, extras, state = (jax.tree.leaves(to_host(part)) for part in output)
        return [x[:count] for x in action], [x[:count] for x in extras], [x[:count] for x in state]
