"""Lets callers in that know the token of the run, and refuses all others.

Whoever connects begins with a greeting: its length in four bytes, its name, a blank, and the token
that only members of this run know. A stranger may leave, send anything, or nothing at all: it is
refused, and nobody waits for it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hmac
import multiprocessing.connection
import socket
import struct
import time
from typing import Any

LENGTH = struct.Struct("<I")
"""Of the length before every message."""
_LONGEST = 256
"""Bytes of a greeting."""
_GREETING_SECONDS = 5.0
_CALLERS = 64
"""Callers that are heard at once; one more takes the place of the first of them."""


def framed(message: str) -> bytes:
    """A message as it is sent: its length in bytes, and itself."""
    content = message.encode()
    return LENGTH.pack(len(content)) + content


@dataclasses.dataclass
class _Caller:
    """Somebody who is not known yet."""

    connection: socket.socket
    until: float
    """When it must have said who it is."""
    heard: bytes = b""

    @property
    def missing(self) -> int:
        """Bytes of its greeting that are still to come, as far as is known."""
        if len(self.heard) < LENGTH.size:
            return LENGTH.size - len(self.heard)
        (length,) = LENGTH.unpack_from(self.heard)
        return LENGTH.size + length - len(self.heard)


class Listener:
    """Callers of a socket, until they have said who they are."""

    def __init__(self, server: socket.socket, token: str):
        """Takes a socket that is bound, and the token of those who are let in."""
        server.listen(_CALLERS)
        server.setblocking(False)
        self._server, self._token = server, token.encode()
        self._callers: list[_Caller] = []

    def wait(self, seconds: float) -> list[tuple[str, socket.socket]]:
        """Those that have been let in, by name; waits at most so long, or until somebody calls."""
        sockets: list[Any] = [self._server, *(one.connection for one in self._callers)]
        # `select` takes no descriptor above 1023.
        heard = multiprocessing.connection.wait(sockets, seconds)
        let_in = []
        for caller in [one for one in self._callers if one.connection in heard]:
            name = self._hear(caller)
            if name is not None:
                self._callers.remove(caller)
                let_in.append((name, caller.connection))
        for caller in [one for one in self._callers if time.monotonic() > one.until]:
            self._refuse(caller)
        if self._server in heard:
            self._accept()
        return let_in

    def close(self) -> None:
        """Refuses all that are not known yet."""
        for caller in list(self._callers):
            self._refuse(caller)

    def _accept(self) -> None:
        with contextlib.suppress(OSError):  # It may have left again.
            connection, _ = self._server.accept()
            connection.setblocking(False)
            self._callers.append(_Caller(connection, time.monotonic() + _GREETING_SECONDS))
            if len(self._callers) > _CALLERS:
                self._refuse(self._callers[0])

    def _hear(self, caller: _Caller) -> str | None:
        """The name of a caller that belongs here; None: it is not known yet, or is refused."""
        try:
            more = caller.connection.recv(caller.missing)
        except BlockingIOError:
            return None
        except OSError:
            more = b""
        caller.heard += more
        if more and 0 < caller.missing <= _LONGEST:
            return None
        name, _, token = caller.heard[LENGTH.size :].partition(b" ")
        known = caller.missing == 0 and hmac.compare_digest(token, self._token)
        if known and name.isascii():
            return name.decode()
        self._refuse(caller)
        return None

    def _refuse(self, caller: _Caller) -> None:
        self._callers.remove(caller)
        caller.connection.close()
