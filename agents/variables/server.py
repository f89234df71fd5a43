"""The variable server: knows the number and the place of the newest version."""

from __future__ import annotations

import pathlib
import threading
from collections.abc import Sequence
from typing import Any, NamedTuple

_INCOMPLETE = 4
"""Versions of which parts are kept while others are missing."""


class Found(NamedTuple):
    """A version that a server has."""

    version: int
    place: Any
    content: list[bytes] | None
    """The files', where it was asked for."""


class VariableServer:
    """Holds the newest version. Its methods may be called from several threads.

    It keeps numbers and places only, so a new one is as good once the learner has announced its
    newest version again, which `Publisher` does.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._newest: tuple[int, Any] | None = None
        self._parts: dict[int, dict[int, Sequence[Any]]] = {}
        self._asked = False

    def announce(self, version: int, place: Any) -> bool:
        """Makes a version the newest, unless a newer one is known; the newest may change places.

        Returns:
          True.
        """
        with self._lock:
            if self._newest is None or version >= self._newest[0]:
                self._newest = (version, place)
                self._asked = False
        return True

    def announce_part(
        self, version: int, part: int, parts: int, places: str | Sequence[Any]
    ) -> bool:
        """Makes a version the newest once all of its parts are announced.

        Args:
          version: its number, which no other version has ever had.
          part: its number, from 0.
          parts: how many make the version.
          places: of this part, a file or several; the place of the version is those of all, in
            order.

        Returns:
          True if none is missing any more.
        """
        with self._lock:
            if self._newest is not None and version <= self._newest[0]:
                return True
            found = self._parts.setdefault(version, {})
            found[part] = [places] if isinstance(places, str) else places
            if len(found) < parts:
                # Of what ranks that are gone have begun, nothing is kept for ever.
                self._parts = dict(sorted(self._parts.items())[-_INCOMPLETE:])
                return False
            self._parts = {one: kept for one, kept in self._parts.items() if one > version}
            self._newest = (version, [place for i in range(parts) for place in found[i]])
            self._asked = False
            return True

    def look(self) -> tuple[int, bool]:
        """The number of the newest version, -1 where there is none, and whether anybody asked
        since it was announced: whoever does will ask again, and then wants something newer."""
        newest = self._newest
        return -1 if newest is None else newest[0], self._asked

    def get(
        self, newer_than: int, inline: bool = False
    ) -> tuple[int, Any, list[bytes] | None] | None:
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
        return version, place, [path.read_bytes() for path in files(place)] if inline else None


class PartServer:
    """A variable server, near or far, as one knows it who publishes a part of each version."""

    def __init__(self, server: Any, part: int, parts: int):
        """Takes the server, the number of the part, and how many make a version."""
        self._server, self._part, self._parts = server, part, parts

    def look(self) -> tuple[int, bool]:
        """See `VariableServer.look`."""
        return self._server.look()

    def announce(self, version: int, places: str | Sequence[Any]) -> bool:
        """See `VariableServer.announce_part`."""
        return self._server.announce_part(version, self._part, self._parts, places)


def files(place: Any) -> list[pathlib.Path]:
    """The files that are a version's place: one, or those of its parts."""
    return [*map(pathlib.Path, [place] if isinstance(place, str) else place)]
