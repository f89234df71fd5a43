"""Sessions of actors that hold no parameters, with a server that chooses their actions.

A server keeps the state of the policy for all of its clients, each of which has a session. A server
that was lost and replaced knows none of them: a client then begins again with what it says of
itself, its memory as at the start of an episode.
"""

from __future__ import annotations

import abc
import collections
import threading
import time
from collections.abc import Callable
from typing import Any, Protocol, runtime_checkable

import jax
import numpy as np

from ..interfaces import VariableSource
from ..networks.core import dummy

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
        """See `SessionServer.infer`; the source knows the client's name."""


class Request:
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


class Session:
    """A client: its rows, and the last of its requests."""

    def __init__(self, token: str, last: Request):
        self.token, self.last, self.rows = token, last, last.rows
        self.heard = time.monotonic()


class SessionServer(abc.ABC):
    """The part of a server that does not depend on how actions are chosen.

    `infer` may be called from many threads; `serve_once` belongs to the thread that has the device.

    Attributes:
      calls: calls to the device so far.
      rows: rows that were answered.
    """

    def __init__(
        self,
        observation_spec: Nest,
        batch_size: int,
        wait_seconds: float = 0.002,
        capacity: int | None = None,
    ):
        """Has no clients yet.

        Args:
          observation_spec: of one environment.
          batch_size: rows of a full batch, which is not waited for any longer.
          wait_seconds: time that the first request of a batch waits for others.
          capacity: streams of all clients, for which there is room from the start; None:
            `batch_size`.

        Raises:
          ValueError: if one of them is out of its range.
        """
        if batch_size < 1:
            raise ValueError(f"batch_size is {batch_size}; it must be at least 1.")
        if wait_seconds < 0:
            raise ValueError(f"wait_seconds is {wait_seconds}; it must be at least 0.")
        if capacity is not None and capacity < 1:
            raise ValueError(f"capacity is {capacity}; it must be at least 1.")
        self._batch_size, self._wait = batch_size, wait_seconds
        self._observation = dummy(observation_spec, 1)
        self._capacity = capacity or batch_size
        self._free = list(range(self._capacity))
        self._sessions: dict[str, Session] = {}
        self._replaced: collections.deque[str] = collections.deque(maxlen=10_000)
        self._queue: collections.deque[Request] = collections.deque()
        self._arrived = threading.Condition()
        self.calls = self.rows = 0

    @abc.abstractmethod
    def warm_up(self, while_waiting: Callable[[], None] = lambda: None) -> None:
        """Compiles all that serving needs."""

    @abc.abstractmethod
    def serve_once(self, seconds: float) -> int:
        """Answers requests with one call to the device.

        Args:
          seconds: time to wait for a request.

        Returns:
          Rows answered.
        """

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
    ) -> Request | None:
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
                held.last = self._enqueue(Request(count, leaves, first, held.rows, None))
                return held.last
        if begin is None:
            return None
        if held is not None:
            self._release(client, f"another session has taken the place of {client}'s.")
            if held.token != token:
                self._replaced.append(held.token)
        rows = self._allocate(len(first))
        request = self._enqueue(Request(count, leaves, first, rows, begin))
        self._sessions[client] = Session(token, request)
        return request

    def _enqueue(self, request: Request) -> Request:
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
