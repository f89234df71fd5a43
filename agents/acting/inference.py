"""Inference for actors that hold no parameters: their observations, batched, through one policy.

A server keeps the state of the policy for all of its clients, each of which has a session. A server
that was lost and replaced knows none of them: a client then begins again with what it says of
itself, its memory as at the start of an episode.
"""

from __future__ import annotations

import collections
import threading
import time
from collections.abc import Callable
from typing import Any, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np

from ..interfaces import ActorCore, VariableSource
from ..networks.core import dummy
from ..programs.placement import Partition
from ..programs.policy import PolicyProgram
from ..variables.client import VariableClient

Nest = Any
Leaves = list[np.ndarray]
Answer = tuple[Leaves, Leaves]
"""Leaves of the actions and of the extras, [n, ...]."""
Begin = tuple[np.ndarray, int, int]
"""Of a client's streams: the words of their keys [n, ...], the number of the first of them among
all that act, and the actions that each has taken."""
_IDLE_SECONDS = 600.0
"""A client not heard of for so long gives way where there is no room for another."""


@runtime_checkable
class InferenceSource(VariableSource, Protocol):
    """A source that, in place of variables, gives the actions that a server chose with them."""

    def infer(
        self, session: str, count: int, leaves: Leaves, first: np.ndarray, begin: Begin | None
    ) -> Answer | None:
        """See `InferenceServer.infer`; the source knows the client's name."""


class _Request:
    """One step of one client: its n rows, and the answer."""

    def __init__(
        self, count: int, leaves: Leaves, first: np.ndarray, rows: np.ndarray, begin: Begin | None
    ):
        self.count, self.leaves, self.first = count, leaves, first
        self.rows, self.begin = rows, begin
        self.done = threading.Event()
        self.answer: Answer | None = None
        self.error: BaseException | None = None

    def fail(self, error: BaseException) -> None:
        self.error = error
        self.done.set()


class _Session:
    """A client: its rows, and the last of its requests."""

    def __init__(self, token: str, last: _Request):
        self.token, self.last, self.rows = token, last, last.rows
        self.heard = time.monotonic()


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
        capacity: int | None = None,
        device: jax.Device | Partition | None = None,
    ):
        """Compiles nothing yet (see `warm_up`).

        Args:
          policy: written for one observation.
          client: where its parameters come from.
          observation_spec: of one environment.
          batch_size: rows of a full batch, which is not waited for any longer.
          wait_seconds: time that the first request of a batch waits for others.
          capacity: streams of all clients, for which there is room from the start; None:
            `batch_size`.
          device: that computes the policy, or a mesh; as of `PolicyProgram`.

        Raises:
          ValueError: if one of them is out of its range.
        """
        if batch_size < 1:
            raise ValueError(f"batch_size is {batch_size}; it must be at least 1.")
        if wait_seconds < 0:
            raise ValueError(f"wait_seconds is {wait_seconds}; it must be at least 0.")
        if capacity is not None and capacity < 1:
            raise ValueError(f"capacity is {capacity}; it must be at least 1.")
        self._client = client
        self._batch_size, self._wait = batch_size, wait_seconds
        self._observation = dummy(observation_spec, 1)
        self._capacity = capacity or batch_size
        self._program = PolicyProgram(policy, self._capacity, device=device, placed=client.place_by)
        full = 1 << (batch_size - 1).bit_length()
        # Over a mesh every size is planned anew, and has to divide: there is but one.
        self._least = full if isinstance(device, Partition) else 1
        self._program.clear()
        self._free = list(range(self._capacity))
        self._sessions: dict[str, _Session] = {}
        self._replaced: collections.deque[str] = collections.deque(maxlen=10_000)
        self._queue: collections.deque[_Request] = collections.deque()
        self._arrived = threading.Condition()
        self.calls = self.rows = 0

    def infer(
        self,
        client: str,
        session: str,
        count: int,
        leaves: Leaves,
        first: np.ndarray,
        begin: Begin | None = None,
        timeout: float = 30.0,
    ) -> Answer | None:
        """Steps the streams of a client.

        A request that is repeated, as its answer was lost, steps nothing again.

        Args:
          client: its name. A new session of the same name takes the place of the old one.
          session: told apart from every other session by its text.
          count: steps of the session before this one.
          leaves: of the observation, arrays [n, ...].
          first: bool [n], true where a row is the first of its episode.
          begin: begins the session where this server does not know it, or another step is due.
          timeout: seconds after which nobody waits for the answer.

        Returns:
          Leaves of the actions and of the extras; None where the session has to begin, and the
          request is to be made again with `begin`.

        Raises:
          TimeoutError: if there was no answer in time.
          RuntimeError: if another session has taken the place of this one.
          ValueError: if the rows are not of the client's number or not like an observation.
        """
        for leaf, like in zip(leaves, jax.tree.leaves(self._observation), strict=True):
            if leaf.shape != (len(first), *like.shape[1:]):
                raise ValueError(
                    f"{client} sent observations of shape {leaf.shape}; they must be of shape "
                    f"{(len(first), *like.shape[1:])}."
                )
        with self._arrived:
            request = self._request(client, session, count, leaves, first, begin)
        if request is None:
            return None
        if not request.done.wait(timeout):
            raise TimeoutError(f"no action within {timeout:g} s.")
        if request.error is not None:
            raise request.error
        assert request.answer is not None
        return request.answer

    def _request(
        self,
        client: str,
        token: str,
        count: int,
        leaves: Leaves,
        first: np.ndarray,
        begin: Begin | None,
    ) -> _Request | None:
        """The request of that count, old or new; None where the session has to begin."""
        if token in self._replaced:
            raise RuntimeError(f"another session has taken the place of {client}'s.")
        held = self._sessions.get(client)
        if held is not None and held.token == token:
            held.heard = time.monotonic()
            if count == held.last.count:
                return held.last
            if count == held.last.count + 1 and held.last.done.is_set():
                if len(first) != len(held.rows):
                    raise ValueError(f"{client} has {len(held.rows)} rows, not {len(first)}.")
                held.last = self._enqueue(_Request(count, leaves, first, held.rows, None))
                return held.last
        if begin is None:
            return None
        if held is not None:
            self._release(client, f"another session has taken the place of {client}'s.")
            if held.token != token:
                self._replaced.append(held.token)
        rows = self._allocate(len(first))
        request = self._enqueue(_Request(count, leaves, first, rows, begin))
        self._sessions[client] = _Session(token, request)
        return request

    def _enqueue(self, request: _Request) -> _Request:
        self._queue.append(request)
        self._arrived.notify()
        return request

    def _allocate(self, count: int) -> np.ndarray:
        """Takes rows for a client, of those that are free, of an idle client's, or new ones."""
        by_age = sorted(self._sessions, key=lambda name: self._sessions[name].heard)
        for name in by_age:
            held = self._sessions[name]
            if len(self._free) >= count or time.monotonic() - held.heard < _IDLE_SECONDS:
                break
            self._release(name, f"{name} was not heard of for {_IDLE_SECONDS:g} s.")
        while len(self._free) < count:
            self._free += range(self._capacity, 2 * self._capacity)
            self._capacity *= 2
        rows, self._free = self._free[:count], self._free[count:]
        return np.asarray(rows, np.int32)

    def _release(self, client: str, why: str) -> None:
        """Forgets a client. Its rows are free, so that a request of its that waits fails."""
        held = self._sessions.pop(client)
        self._free += held.rows.tolist()
        if held.last in self._queue:
            self._queue.remove(held.last)
            held.last.fail(RuntimeError(why))

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

    def _failed(self, batch: list[_Request], error: Exception) -> None:
        """Forgets those whose streams are in no known state."""
        with self._arrived:
            for client, held in list(self._sessions.items()):
                if held.last in batch or self._program.is_lost:
                    self._release(client, f"the policy's state was lost: {error}")
            if self._program.is_lost:
                self._program.clear()
        for request in batch:
            request.fail(error)

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
            batch: list[_Request] = []
            size = 0
            while self._queue and (
                not batch or size + len(self._queue[0].first) <= self._batch_size
            ):
                batch.append(self._queue.popleft())
                size += len(batch[-1].first)
            if self._capacity > self._program.num_streams:
                self._program.grow(self._capacity)
            return batch

    def _run(self, batch: list[_Request]) -> Answer:
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
