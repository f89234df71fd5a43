"""What the supervisors of a run's hosts say to each other: JSON through a socket, never waited for.

Between them go orders and signs of life; nothing that is received is run, or built as an object.
"""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import socket
import time
from collections.abc import Mapping
from typing import Any, NamedTuple

from ....listener import LENGTH, framed

_FILE = ".meeting.json"
_MOST = 1 << 20
"""Bytes of a message, and of what waits to be sent."""


class MeetingPlace(NamedTuple):
    """Where the host of the core is heard, and what only those know who can read its folder."""

    address: str
    port: int
    token: str

    def write(self, folder: pathlib.Path) -> None:
        """Makes it known to all who see the folder, and may read what is this user's."""
        temporary = folder / f"{_FILE}-{os.getpid()}"
        temporary.touch(0o600)
        temporary.write_text(json.dumps(self._asdict()))
        os.replace(temporary, folder / _FILE)

    def remove(self, folder: pathlib.Path) -> None:
        """Takes it back, where no later one stands in its place."""
        if MeetingPlace.read(folder) == self:
            with contextlib.suppress(OSError):
                (folder / _FILE).unlink()

    @classmethod
    def read(cls, folder: pathlib.Path) -> MeetingPlace | None:
        """That of a folder; None: there is none."""
        try:
            return cls(**json.loads((folder / _FILE).read_text()))
        except (OSError, ValueError, TypeError):
            return None


class Channel:
    """One side of a connection.

    Attributes:
      heard_at: when something last came, of `time.monotonic`; at first when it was made.
    """

    def __init__(self, connection: socket.socket):
        """Takes a connection on which the greeting has been."""
        connection.setblocking(False)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._connection = connection
        self._coming, self._going = b"", b""
        self._is_open = True
        self.heard_at = time.monotonic()

    def send(self, **message: Any) -> None:
        """Sends a message, now or with the next ones; none where the other side is gone."""
        if not self._is_open:
            return
        self._going += framed(json.dumps(message))
        try:
            self._going = self._going[self._connection.send(self._going) :]
        except BlockingIOError:
            self._is_open = len(self._going) <= _MOST
        except OSError:
            self._is_open = False

    def receive(self) -> list[Mapping[str, Any]] | None:
        """The messages that have come; None: the other side is gone."""
        while self._is_open:
            try:
                more = self._connection.recv(1 << 16)
            except BlockingIOError:
                break
            except OSError:
                more = b""
            self._is_open = bool(more)
            self._coming += more
        messages = []
        while len(self._coming) >= LENGTH.size:
            (length,) = LENGTH.unpack_from(self._coming)
            if length > _MOST:
                self._is_open = False
                break
            end = LENGTH.size + length
            if len(self._coming) < end:
                break
            messages.append(json.loads(self._coming[LENGTH.size : end]))
            self._coming = self._coming[end:]
        if messages:
            self.heard_at = time.monotonic()
        return messages if messages or self._is_open else None

    @property
    def silence(self) -> float:
        """Seconds since the other side was heard."""
        return time.monotonic() - self.heard_at

    def close(self) -> None:
        self._is_open = False
        self._connection.close()


def call(place: MeetingPlace, host: int, seconds: float) -> Channel:
    """Connects to the host of the core, and says which of the hosts one is.

    Raises:
      OSError: if nobody answers there.
    """
    connection = socket.create_connection((place.address, place.port), timeout=seconds)
    try:
        connection.sendall(framed(f"{host} {place.token}"))
    except OSError:
        connection.close()
        raise
    return Channel(connection)
