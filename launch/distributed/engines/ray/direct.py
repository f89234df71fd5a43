"""Calls to a role through a socket of its own, for what is called at every step of an environment.

A call of Ray takes most of a millisecond of a processor at either end, and passes through several
threads of both processes; one of these takes a tenth of that. Ray tells where the socket is, and
the token that lets callers in.
"""

from __future__ import annotations

import pickle
import secrets
import socket
import threading
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

from ...listener import Listener, framed
from ...supervision import process

FAILED = "failed"
_WAIT_SECONDS = 5.0


class Address(NamedTuple):
    """The place of a role's socket."""

    host: str
    port: int
    token: str
    """Whoever does not know it is refused."""


class ConnectionLost(Exception):
    """There was no answer in time, or the other process is gone."""


class DirectServer:
    """Answers callers, each in a thread of its own, until its process ends."""

    def __init__(self, answer: Callable[..., tuple[str, Any]], host: str):
        """Begins to listen.

        Args:
          answer: makes an answer of a state and a value from the arguments of a call.
          host: address of this node.
        """
        self._answer = answer
        server = socket.socket()
        server.bind((host, 0))
        token = secrets.token_hex(16)
        self.address = Address(host, server.getsockname()[1], token)
        self._listener = Listener(server, token)
        threading.Thread(target=self._let_in, daemon=True, name="callers").start()

    def _let_in(self) -> None:
        while True:
            for name, caller in self._listener.wait(_WAIT_SECONDS):
                caller.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
                connection = _connection(caller)
                threading.Thread(
                    target=self._serve, args=(connection,), daemon=True, name=name
                ).start()

    def _serve(self, connection: Connection) -> None:
        with connection:
            while True:
                try:
                    call = connection.recv_bytes()
                except (EOFError, OSError):
                    return
                try:
                    answer = pickle.dumps(self._answer(*pickle.loads(call)))
                except Exception as error:  # Of what cannot be pickled.
                    answer = pickle.dumps((FAILED, process.describe(error)))
                try:
                    connection.send_bytes(answer)
                except OSError:
                    return


class DirectConnection:
    """The caller's end, of one thread."""

    def __init__(self, address: Address, seconds: float):
        """Connects.

        Args:
          address: of the role's socket.
          seconds: how long an answer may take.

        Raises:
          OSError: if nobody can be reached there.
        """
        caller = socket.create_connection(address[:2], seconds)
        caller.sendall(framed(f"caller {address.token}"))
        self._seconds, self._connection = seconds, _connection(caller)

    def call(self, *arguments: Any) -> Any:
        """Returns the answer, a state and a value.

        Raises:
          ConnectionLost: if there is none in time; another call would get this one's answer.
        """
        call = pickle.dumps(arguments)
        try:
            self._connection.send_bytes(call)
            if self._connection.poll(self._seconds):
                return pickle.loads(self._connection.recv_bytes())
        except (EOFError, OSError) as error:
            self._connection.close()
            raise ConnectionLost(str(error)) from error
        self._connection.close()
        raise ConnectionLost(f"no answer within {self._seconds:g} s")


def _connection(caller: socket.socket) -> Connection:
    """A socket as a connection, which sends every message at once."""
    caller.setblocking(True)
    caller.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return Connection(caller.detach())
