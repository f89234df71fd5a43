"""An address at which agents find a simulator, and the agents that have found it."""

from __future__ import annotations

import contextlib
import hmac
import secrets
import socket
from typing import Any

from . import messages
from .messages import ProtocolError, proof, receive, send
from .spaces import Space, pack, unpack

_GREETING_SECONDS = 10.0


class Player:
    """An agent that is connected: it is told what is observed, and says what to do.

    Every method raises `ProtocolError` where the agent is gone.

    Attributes:
      seed: an integer that the agent would have the first episode seeded with.
    """

    def __init__(
        self, connection: socket.socket, observation: Space, action: Space, seed: int
    ) -> None:
        """Takes the connection of an agent that has been greeted."""
        self._connection, self.seed = connection, seed
        self._observation, self._action = observation, action
        self._asked = False  # For an episode, which has not begun.

    def wait(self) -> None:
        """Waits until the agent would have an episode; `begin` does so too."""
        if not self._asked and self._next() is not None:
            raise ProtocolError("an action came where no episode had begun")

    def begin(self, observation: Any, info: dict[str, Any] | None = None) -> Any:
        """Begins an episode; returns the first action, arrays as nested lists, or None: the agent
        would have another episode.

        Args:
          observation: that fits its space; arrays may be nested lists.
          info: numbers beside it, and a list "action_mask" of 0 and 1.
        """
        self.wait()
        self._asked = False
        self._send({"kind": "first", "info": info or {}}, observation)
        return self._next()

    def step(self, observation: Any, reward: float, info: dict[str, Any] | None = None) -> Any:
        """Tells what an action led to; returns the next one, or None: the agent would have another
        episode, which `begin` begins."""
        self._tell(observation, reward, info)
        return self._next()

    def end(
        self,
        observation: Any,
        reward: float,
        terminated: bool = True,
        info: dict[str, Any] | None = None,
    ) -> None:
        """Tells what an episode ended with.

        Args:
          observation, reward, info: as of `step`.
          terminated: False where it was cut off, by a limit of time say, and could have gone on.
        """
        self._tell(observation, reward, info, terminated, not terminated)

    def fail(self, reason: str) -> None:
        """Tells the agent that the simulator cannot go on, and leaves."""
        with contextlib.suppress(ProtocolError):
            send(self._connection, {"kind": "failed", "reason": reason})
        self.close()

    def close(self) -> None:
        """Leaves."""
        self._connection.close()

    def _tell(
        self, observation: Any, reward: Any, info: Any, ended: bool = False, cut: bool = False
    ) -> None:
        header = {"kind": "next", "reward": float(reward), "info": info or {}}
        self._send({**header, "terminated": bool(ended), "truncated": bool(cut)}, observation)

    def _send(self, header: dict[str, Any], observation: Any) -> None:
        send(self._connection, header, pack(self._observation, observation, "the observation"))

    def _next(self) -> Any:
        """The agent's next action; None where it asks for an episode."""
        header, content = receive(self._connection)
        if header["kind"] == "act":
            return unpack(self._action, content)
        if header["kind"] != "reset":
            raise ProtocolError("there is no message of kind {!r}".format(header["kind"]))
        self._asked = True
        return None


class SimulatorServer:
    """An address at which agents find a simulator."""

    def __init__(
        self, address: str, observation: Space, action: Space, token: str | None = None
    ) -> None:
        """Listens.

        Args:
          address: "HOST:PORT"; port 0 is any that is free.
          observation, action: spaces, as `box` and its like make them.
          token: None for the one of this process's environment.

        Raises:
          ValueError: if the address is none, or is open to others and there is no token.
          OSError: if nobody can listen there.
        """
        host, port = messages.parse_address(address)
        self._token = messages.find_token() if token is None else token
        if not self._token and not messages.is_local(host):
            raise ValueError(
                f"other machines can connect to {address}: set {messages.TOKEN} or "
                f"{messages.TOKEN_PATH}, here and where the agents are"
            )
        self._spaces = {"observation": observation, "action": action}
        is_v6 = ":" in host
        family = socket.AF_INET6 if is_v6 else socket.AF_INET
        self._socket = socket.create_server((host, port), family=family, backlog=64)
        self.port: int = self._socket.getsockname()[1]
        self.address = ("[%s]:%d" if is_v6 else "%s:%d") % (host, self.port)

    def wait(self) -> Player:
        """Returns the next agent that connects and knows the token.

        Raises:
          OSError: if the server was closed.
        """
        while True:
            player = self.greet(self.accept())
            if player is not None:
                return player

    def accept(self) -> socket.socket:
        """Returns the next connection, of whomever.

        Raises:
          OSError: if the server was closed.
        """
        connection, _ = self._socket.accept()
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return connection

    def greet(self, connection: socket.socket) -> Player | None:
        """Returns the agent that a connection is of; None where it is of nobody who may."""
        nonce = secrets.token_hex(16)
        connection.settimeout(_GREETING_SECONDS)
        try:
            send(connection, {"kind": "challenge", "protocol": messages.PROTOCOL, "nonce": nonce})
            hello, _ = receive(connection)
            nonces = nonce, str(hello.get("nonce"))
            said = str(hello.get("proof")).encode()
            if not hmac.compare_digest(said, proof(self._token, "agent", nonces).encode()):
                send(connection, {"kind": "refused"})
                raise ProtocolError("it does not know the token")
            shown = proof(self._token, "server", nonces)
            send(connection, {"kind": "spaces", "proof": shown, **self._spaces})
            seed = int(hello["seed"])
        except (ProtocolError, ValueError, TypeError, KeyError):
            connection.close()
            return None
        connection.settimeout(None)
        return Player(connection, seed=seed, **self._spaces)

    def close(self) -> None:
        """Listens no more; agents that are connected stay."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)  # Wakes who waits for a connection.
        self._socket.close()

    def __enter__(self) -> SimulatorServer:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()
