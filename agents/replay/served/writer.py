"""An actor's proxy of a replay in another process."""

from __future__ import annotations

import contextlib
import threading
import time
import uuid
from collections.abc import Callable
from typing import Any

import dm_env
import numpy as np

from ..embedded.adder import EmbeddedAdder
from ..embedded.embedded_replay import make_windows, row_fields
from ..embedded.rows import Rows
from ..items import ReplaySpec, Rollouts
from ..nests import Nest
from ..remote import RemoteProxy
from . import chunks
from .chunks import Chunk, ReplayServer

_PERIOD = 0.1  # How long rows wait for others to travel with.
_PATIENCE = 0.3  # How long the server may keep a writer waiting before both look around.
_AGAIN_SECONDS = 0.1
_IDLE_SECONDS = 0.5  # After so long without an action, what could be begun is given back.
_NOTHING, _BACK = (Chunk(0, {}, {}, np.zeros(0), []) for _ in range(2))
"""Stand for a sign of life of who acts, and for giving back what could be begun."""


class ServedWriter(RemoteProxy):
    """Proxy with which an actor writes to a `SharedReplay` in another process."""

    def __init__(
        self,
        spec: ReplaySpec,
        environment_spec: Any,
        extras_spec: Nest,
        server: ReplayServer,
        *,
        num_envs: int | None = None,
        while_waiting: Callable[[], None] = lambda: None,
    ) -> None:
        """Connects to nothing yet.

        Args:
          spec, environment_spec, extras_spec: As the server's replay was made from.
          server: A `SharedReplay`, near or far.
          num_envs: N, of the actor that writes here, as the server's.
          while_waiting: Called several times a second while an adder waits; may raise.
        """
        super().__init__(spec, environment_spec, extras_spec)
        self._server = server
        self._num_envs, self._while_waiting = num_envs, while_waiting
        self._adders: list[ChunkAdder] = []

    def adder(self) -> ChunkAdder:
        """Returns a new adder of this replay, usable until the replay is closed."""
        adder = ChunkAdder(
            *self._specs,
            self._server,
            self.failed,
            num_envs=self._num_envs,
            while_waiting=self._while_waiting,
        )
        self._adders.append(adder)
        return adder

    def flush(self) -> None:
        """Waits until all that was written is with the server."""
        for adder in self._adders:
            adder.flush()

    def close(self) -> None:
        """Sends what is left, for at most a moment."""
        for adder in self._adders:
            adder.close()

    def _ask(self) -> tuple[int, int, int]:
        return self._server.numbers()


class ChunkAdder:
    """Writes the steps of an actor's environments, and sends them from a thread of its own.

    It has the calls of `EmbeddedAdder`. It goes ahead of the server as far as that has let it; what
    then holds it up, the pace or a server that does not answer, calls `while_waiting` meanwhile.
    """

    def __init__(
        self,
        spec: ReplaySpec,
        environment_spec: Any,
        extras_spec: Nest,
        server: ReplayServer,
        failed: tuple[type[Exception], ...],
        *,
        num_envs: int | None,
        while_waiting: Callable[[], None],
    ) -> None:
        """Starts the thread. Arguments as of `ServedWriter`."""
        self._server, self._failed, self._while_waiting = server, failed, while_waiting
        windows = make_windows(spec.item, num_envs)
        self._items = chunks.Items(windows.columns)
        windows.insert_into(self._items)
        capacity = 4 * windows.span + 4 * chunks.ROWS
        self._rows = Rows(
            row_fields(windows.stored, environment_spec, extras_spec), capacity, num_envs
        )
        # Who waits for a window is served at once.
        self._prompt = isinstance(spec.item, Rollouts)
        self._begins = spec.max_ahead is not None  # Items count from when they are begun.
        lock = threading.RLock()
        self._changed = threading.Condition(lock)
        self._adder = EmbeddedAdder(
            self._rows, windows, lock, lambda: None, lambda: max(0, self._sent - 1)
        )
        self._name = uuid.uuid4().hex
        self._sent = self._taken = 0  # Rows that were sent, and those that the server took.
        self._limit = 1  # Rows that may be written.
        self._is_waiting = self._is_closed = False
        self._is_acting = False  # Between `begin` and `add`.
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="replay-writer", daemon=True)
        self._thread.start()

    def add_first(self, timestep: dm_env.TimeStep) -> None:
        """See `EmbeddedAdder.add_first`."""
        self._wait()
        with self._changed:
            self._adder.add_first(timestep)
            self._changed.notify_all()

    def add(self, action: Nest, next_timestep: dm_env.TimeStep, extras: Nest = ()) -> None:
        """See `EmbeddedAdder.add`."""
        if self._rows.written >= self._limit or self._error is not None:
            self._wait()
        with self._changed:
            self._adder.add(action, next_timestep, extras)
            self._is_acting = False
            if self._rows.written - self._sent == 1 or self._is_due():
                self._changed.notify_all()

    def begin(self) -> bool:
        """Waits until another action may be chosen, where `ReplaySpec.max_ahead` has it wait.

        Returns:
          True there: how long it waited was reckoned from the newest parameters, which are to be
          fetched.
        """
        if not self._begins:
            return False
        while True:
            with self._changed:
                if self._may_go_on():
                    self._is_acting = True
                    return True
            self._wait()

    def reset(self) -> None:
        """Drops what is not complete; `add_first` must come next."""
        self._adder.reset()

    def flush(self) -> None:
        """Waits until all that was written is with the server."""
        with self._changed:
            self._changed.wait_for(lambda: self._error or self._taken == self._rows.written)
            self._raise()

    def close(self) -> None:
        """Sends what is left, for at most a moment."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
        self._thread.join(2 * _PATIENCE)

    def _wait(self) -> None:
        """Waits until another row may be written."""
        while True:
            with self._changed:
                self._is_waiting = True
                self._changed.notify_all()
                self._changed.wait_for(lambda: self._may_go_on() or self._error, _PATIENCE)
                self._is_waiting = False
                self._raise()
                if self._may_go_on():
                    return
            self._while_waiting()

    def _may_go_on(self) -> bool:
        return self._rows.written < self._limit

    def _raise(self) -> None:
        if self._error is not None:
            raise RuntimeError(f"nothing can be written: {self._error}") from self._error

    def _is_due(self) -> bool:
        """True if a chunk is to be sent without waiting for more rows."""
        written = self._rows.written
        # The server's answer is under way while the last row that it has allowed is made.
        if written >= self._limit - 1:
            return True
        return written - self._sent >= chunks.ROWS or (self._prompt and len(self._items) > 0)

    def _run(self) -> None:
        number = 0
        try:
            while (chunk := self._next()) is not None:
                if chunk is _NOTHING or chunk is _BACK:
                    with contextlib.suppress(*self._failed):
                        self._server.hear(self._name, chunk is _NOTHING)
                    continue
                number += 1
                stop = chunk.row + len(chunk.ages)
                room = self._deliver(number, chunk)
                with self._changed:
                    self._limit = max(self._limit, stop + room)
                    self._taken = stop
                    self._changed.notify_all()
        except BaseException as error:
            with self._changed:
                self._error = error
                self._changed.notify_all()

    def _next(self) -> Chunk | None:
        """Waits for rows to send, or for somebody who waits to go on; None: there will be none.

        While what an actor has begun counts, `_NOTHING` comes now and then; where it could begin
        and does not, as one whose budget is spent, `_BACK`.
        """
        with self._changed:
            while not (self._is_waiting and not self._may_go_on()):
                if self._rows.written > self._sent:
                    self._changed.wait_for(lambda: self._is_due() or self._is_closed, _PERIOD)
                    break
                if self._is_closed:
                    return None
                if not self._begins:
                    self._changed.wait()
                elif self._is_acting:
                    if not self._changed.wait(chunks.ALIVE_SECONDS):
                        return _NOTHING
                elif not self._may_go_on():
                    self._changed.wait()
                elif not self._changed.wait(_IDLE_SECONDS) and not (
                    # What came while the lock was awaited.
                    self._is_acting or self._is_waiting or self._rows.written > self._sent
                ):
                    self._limit = self._rows.written
                    return _BACK
            if self._is_closed and self._rows.written == self._sent:
                return None
            chunk = chunks.take(self._rows, self._sent, self._items.take())
            self._sent = self._rows.written
            return chunk

    def _deliver(self, number: int, chunk: Chunk) -> int:
        """Sends a chunk until it is taken; returns how many rows may follow."""
        while True:
            try:
                patience = 0.0 if self._is_closed else _PATIENCE
                room = self._server.write(self._name, number, chunk, patience)
                if room is not None:
                    return room
            except self._failed:
                time.sleep(_AGAIN_SECONDS)
            if self._is_closed:
                return 0
