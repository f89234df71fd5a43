"""Messages between a simulator and an agent, and how either shows that it knows the token."""

from __future__ import annotations

import hmac
import json
import os
import socket
import struct
from typing import Any

PROTOCOL = 1
LENGTHS = struct.Struct("<II")
"""Of the header of a message and of the bytes that follow it."""
TOKEN, TOKEN_PATH = "TROUPE_EXTERNAL_TOKEN", "TROUPE_EXTERNAL_TOKEN_PATH"
_MOST_BYTES = 1 << 30
"""Of one message: more is a mistake."""


class ProtocolError(Exception):
    """The other side is gone, or sent something else than the protocol says."""


def send(connection: socket.socket, header: dict[str, Any], content: bytes = b"") -> None:
    """Sends a message.

    Raises:
      ProtocolError: if the other side is gone.
    """
    text = json.dumps(header).encode()
    try:
        connection.sendall(b"".join((LENGTHS.pack(len(text), len(content)), text, content)))
    except OSError as error:
        raise ProtocolError(str(error)) from error


def receive(connection: socket.socket) -> tuple[dict[str, Any], bytes]:
    """Returns the next message, its header and its bytes.

    Raises:
      ProtocolError: if the other side is gone, is silent for longer than the connection waits, or
        sends what is no message.
    """
    lengths = LENGTHS.unpack(_exactly(connection, LENGTHS.size))
    if max(lengths) > _MOST_BYTES:
        raise ProtocolError(f"what came is no message: it would have {max(lengths)} bytes")
    text, content = (_exactly(connection, length) for length in lengths)
    try:
        header = json.loads(text.decode())
        header["kind"]
    except (ValueError, KeyError, TypeError) as error:
        raise ProtocolError(f"what came is no message: {text[:80]!r}") from error
    return header, content


def _exactly(connection: socket.socket, count: int) -> bytes:
    parts = []
    while count:
        try:
            part = connection.recv(min(count, 1 << 20))
        except OSError as error:
            raise ProtocolError(str(error)) from error
        if not part:
            raise ProtocolError("the connection was closed")
        parts.append(part)
        count -= len(part)
    return b"".join(parts)


def proof(token: str, who: str, nonces: tuple[str, str]) -> str:
    """Returns what shows that `who`, "agent" or "server", knows the token."""
    words = "{} {} {}".format(who, *nonces)
    return hmac.new(token.encode(), words.encode(), "sha256").hexdigest()


def find_token() -> str:
    """Returns the token of this process's environment; an empty text where there is none.

    Raises:
      OSError: if the file that has it cannot be read.
    """
    path = os.environ.get(TOKEN_PATH)
    if TOKEN in os.environ or not path:
        return os.environ.get(TOKEN, "").strip()
    return read_token(path)


def read_token(path: str) -> str:
    """Returns the first line of a file.

    Raises:
      OSError: if it cannot be read.
    """
    with open(path, encoding="utf-8") as file:
        return file.readline().strip()


def parse_address(text: str) -> tuple[str, int]:
    """Returns the host and the port of "HOST:PORT".

    Raises:
      ValueError: if it is not of this form.
    """
    host, _, port = text.rpartition(":")
    if not host or not port.isdecimal() or int(port) > 65535:
        raise ValueError(f"an address is HOST:PORT, got {text!r}")
    return host.strip("[]"), int(port)


def is_local(host: str) -> bool:
    """Returns whether a host of this name is found on this machine alone."""
    return host in ("localhost", "::1") or host.startswith("127.")
