"""The variable server: knows the number and the place of the newest version."""

from __future__ import annotations

import pathlib
import threading
from typing import Any, NamedTuple


class Found(NamedTuple):
    """A version that a server has."""

    version: int
    place: Any
    content: bytes | None
    """The file's, where it was asked for."""


class VariableServer:
    """Holds the newest version. Its methods may be called from several threads.

    It keeps numbers and places only, so a new one is as good once the learner has announced its
    newest version again, which `Publisher` does.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._newest: tuple[int, Any] | None = None
        self._asked = False

    def announce(self, version: int, place: Any) -> None:
        """Makes a version the newest, unless a newer one is known; the newest may change places."""
        with self._lock:
            if self._newest is None or version >= self._newest[0]:
                self._newest = (version, place)
                self._asked = False

    def look(self) -> tuple[int, bool]:
        """The number of the newest version, -1 where there is none, and whether anybody asked
        since it was announced: whoever does will ask again, and then wants something newer."""
        newest = self._newest
        return -1 if newest is None else newest[0], self._asked

    def get(self, newer_than: int, inline: bool = False) -> tuple[int, Any, bytes | None] | None:
        """The newest version, as `Found`; None where none is newer.

        Args:
          newer_than: number of the version that the reader has; -1: none.
          inline: send the bytes too, for a reader that cannot see the file which is its place.
        """
        self._asked = True
        newest = self._newest
        if newest is None or newest[0] <= newer_than:
            return None
        version, place = newest
        return version, place, pathlib.Path(place).read_bytes() if inline else None
