"""Keeps up with a variable server, for whoever acts."""

from __future__ import annotations

import contextlib
import functools
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import jax

from .server import files
from .stored import gathered, merged
from .version_board import read_version

Nest = Any
_LEAST_SECONDS = 0.02
_REST = 50
"""A question is followed by a rest of so many times its length, or of the reader's period: many may
ask one server, and what they fetch costs the learner's machine where they are on it."""


class Server(Protocol):
    """A `VariableServer`, near or far, as a reader sees it."""

    def get(self, newer_than: int, inline: bool) -> tuple[int, Any, list[bytes] | None] | None: ...


Fetch = Callable[[Server, int], tuple[int, dict[str, Nest]] | None]
"""Asks a server once for what is newer than a version: its number and the variables, or None."""


def from_file(server: Server, newer_than: int) -> tuple[int, dict[str, Nest]] | None:
    """Maps the files that are a version's place, or has their bytes sent where they cannot be
    seen."""
    found = server.get(newer_than, False)
    if found is None:
        return None
    version, place, _ = found
    try:
        return version, merged([read_version(path) for path in files(place)])
    except FileNotFoundError:
        found = server.get(newer_than, True)  # Another host, or newer by now.
        return None if found is None else (found[0], merged([*map(read_version, found[2] or [])]))


class VariableReader:
    """A `VariableSource` that keeps up with a server from a thread of its own.

    What ends the thread is raised to whoever uses the source: it would go on for ever with what it
    has.

    Attributes:
      fetched: how many versions were fetched.
    """

    def __init__(
        self,
        server: Server,
        *,
        fetch: Fetch = from_file,
        period: float = 0.2,
        first_period: float = 0.02,
        failed: tuple[type[Exception], ...] = (OSError,),
        while_waiting: Callable[[], None] = lambda: None,
        on_host: bool = False,
    ):
        """Starts the thread.

        Args:
          server: a `VariableServer`, near or far.
          fetch: how a version is had of it.
          period: seconds between two questions; less where they take little.
          first_period: likewise, before there is a version.
          failed: what a call of the server raises when it cannot be reached.
          while_waiting: called several times a second while `get_variables` waits for the first
            version; may raise.
          on_host: leave variables on the host, for who spreads them over devices.
        """
        self._fetch = functools.partial(fetch, server)
        self._period, self._failed = period, failed
        self._first_period = min(period, first_period)
        self._while_waiting, self._on_host = while_waiting, on_host
        self._variables: dict[str, Nest] | None = None
        self._refreshing, self._closed = threading.Lock(), threading.Event()
        self._error: BaseException | None = None
        self._version = -1
        self._places: dict[str, Callable[[Nest], Nest]] = {}
        self.fetched = 0
        threading.Thread(target=self._run, name="variables", daemon=True).start()

    @property
    def version(self) -> int:
        """Number of the version held; -1 before the first.

        Raises:
          RuntimeError: if no newer one will come, as the thread has failed.
        """
        self._raise()
        return self._version

    def get_variables(self, names: Sequence[str] = ("policy",)) -> list[Nest]:
        """The named collections of the version held. Waits for the first.

        Raises:
          KeyError: if the learner publishes none of such a name.
          RuntimeError: as `version`.
        """
        while self._variables is None:
            self._raise()
            self._while_waiting()
            time.sleep(0.02)
        variables = self._variables
        unknown = [name for name in names if name not in variables]
        if unknown:
            raise KeyError(f"No variables named {unknown}; there are {sorted(variables)}.")
        return [variables[name] for name in names]

    def place_by(self, name: str, place: Callable[[Nest], Nest]) -> None:
        """Has a collection of newer versions brought to where it is used, before they are held."""
        self._places[name] = place

    def ask(self) -> None:
        """Asks once, as its thread does; what fails is asked for again by that."""
        with contextlib.suppress(*self._failed):
            self.refresh()

    def refresh(self) -> bool:
        """Asks once; says whether there was something newer."""
        with self._refreshing:
            found = self._fetch(self._version)
            if found is None:
                return False
            version, variables = found
            for name, place in self._places.items():
                variables = {**variables, name: place(variables[name])}
            # On the device once, not with every call; on CPU this is the mapped memory itself.
            self._variables = variables if self._on_host else jax.device_put(gathered(variables))
            self._version = version  # Last: whoever sees the number finds the variables.
            self.fetched += 1
            return True

    def close(self) -> None:
        self._closed.set()

    def _run(self) -> None:
        period = self._first_period
        try:
            while not self._closed.wait(period):
                began = time.monotonic()
                self.ask()  # Again after the next period, whatever fails.
                if self._variables is not None:
                    rest = _REST * (time.monotonic() - began)
                    period = min(self._period, max(_LEAST_SECONDS, rest))
        except BaseException as error:
            self._error = error

    def _raise(self) -> None:
        if self._error is not None:
            raise RuntimeError(f"newer variables cannot be had: {self._error}") from self._error
