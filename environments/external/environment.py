"""A simulator that is served elsewhere, as an environment of Gymnasium's."""

from __future__ import annotations

import itertools
import secrets
import socket
import time
from collections.abc import Sequence
from typing import Any

import gymnasium
import numpy as np

from ..errors import EnvironmentFault, LostSimulatorError
from .client import messages
from .client.messages import ProtocolError, receive, send
from .spaces import Codec

_CHALLENGE_SECONDS = 2.0
"""Until a server that is free has answered: one that has no environment to give says nothing."""
_PAUSE_SECONDS = 0.2
"""Between two rounds over the addresses."""
LOST = "lost_simulator"
"""Entry of info where the connection was lost: 1."""


class ExternalEnvironment(gymnasium.Env):
    """The environment of one connection to a simulator.

    Where a simulator is lost in an episode, that episode is truncated with what was observed last,
    a reward of 0 and an entry `LOST` of info; the next one is of whichever simulator is found.
    """

    def __init__(
        self,
        addresses: Sequence[str],
        seed: int,
        *,
        token: str = "",
        patience: float = 60.0,
        time_limit: float = 60.0,
    ) -> None:
        """Connects.

        Args:
          addresses: "HOST:PORT" of servers; they are tried in turn, from one that the seed chooses.
          seed: of the simulator's first episode.
          token: what servers ask for.
          patience: seconds until a simulator must be found.
          time_limit: seconds until a simulator must have answered; one that has not is lost.

        Raises:
          EnvironmentFault: if the token is wrong, the simulator speaks another protocol, or its
            spaces are none.
          LostSimulatorError: if none is found.
        """
        self._addresses = list(addresses)
        self._seed, self._token = seed, token
        self._patience, self._time_limit = patience, time_limit
        self._connection: socket.socket | None = None
        self._due: str | None = None  # The kind of message that was asked for last.
        self._last: Any = None
        self._spaces: tuple[Any, Any] | None = None
        try:
            self._connect()
        except EnvironmentFault:
            self._leave()
            raise

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Begins an episode; the seed is that of the constructor.

        Raises:
          LostSimulatorError: if no simulator is found, or two in turn are lost before they begin.
        """
        super().reset(seed=seed)
        try:
            return self._begin()
        except ProtocolError:
            self._leave()
        try:
            return self._begin()
        except ProtocolError as error:
            self._leave()
            raise LostSimulatorError(f"{self._who}: no episode begins: {error}") from error

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Takes one step.

        Raises:
          LostSimulatorError: if the simulator says that it cannot go on.
        """
        try:
            self.ask(action)
            header, self._last = self._receive("next")
        except ProtocolError:
            self._leave()
            return self._last, 0.0, False, True, {LOST: 1.0}
        try:
            reward, ended = float(header["reward"]), bool(header["terminated"])
            return self._last, reward, ended, bool(header["truncated"]), _info(header)
        except (KeyError, TypeError, ValueError) as error:
            raise EnvironmentFault(f"{self._who}: a step has no {error}") from error

    def ask(self, action: Any = None) -> None:
        """Sends an action, or without one asks for an episode, unless that was done.

        What the simulator answers `step` or `reset` receives: so several compute at once.

        Raises:
          ProtocolError: if the simulator is lost.
          LostSimulatorError: if there is none, and none is found.
        """
        due = "first" if action is None else "next"
        if self._due == due:
            return
        if action is not None:
            send(self._open, {"kind": "act"}, self._actions.pack(action))
        else:
            if self._connection is None:
                self._connect()
            send(self._open, {"kind": "reset"})
        self._due = due

    def close(self) -> None:
        """Leaves the simulator."""
        self._leave()

    def _begin(self) -> tuple[Any, dict[str, Any]]:
        self.ask()
        header, self._last = self._receive("first")
        return self._last, _info(header)

    @property
    def _open(self) -> socket.socket:
        if self._connection is None:
            raise ProtocolError("the connection was closed")
        return self._connection

    def _leave(self) -> None:
        if self._connection is not None:
            self._connection.close()
        self._connection, self._due = None, None

    def _receive(self, kind: str) -> tuple[dict[str, Any], Any]:
        """The header of the answer that is waited for, and the observation."""
        while True:
            header, content = receive(self._open)
            if header["kind"] == "failed":
                raise LostSimulatorError(f"{self._who}: it failed: {header.get('reason')}")
            if header["kind"] == kind:
                self._due = None
                return header, self._observations.unpack(content)
            if kind == "first" and header["kind"] == "next":
                continue  # Of an episode that is left for another.
            raise ProtocolError(f"{header['kind']!r} came where {kind!r} was due")

    def _connect(self) -> None:
        """Finds a simulator."""
        count = len(self._addresses)
        found: dict[str, str] = {}
        until = time.monotonic() + self._patience
        for turn in itertools.count(self._seed % count):
            address = self._addresses[turn % count]
            try:
                self._greet(address)
                return
            except (ProtocolError, OSError) as error:
                self._leave()
                found[address] = str(error)
            if time.monotonic() > until:
                said = "; ".join(f"{address}: {reason}" for address, reason in found.items())
                raise LostSimulatorError(
                    f"no simulator was found in {self._patience:g} s ({said})"
                ) from None
            if (turn + 1 - self._seed) % count == 0:
                time.sleep(_PAUSE_SECONDS)

    def _greet(self, address: str) -> None:
        """Connects to one server, each of which shows the other that it knows the token."""
        self._who = f"the simulator at {address}"
        self._connection = socket.create_connection(
            messages.parse_address(address), timeout=min(_CHALLENGE_SECONDS, self._time_limit)
        )
        self._connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        try:
            challenge, _ = receive(self._connection)
        except ProtocolError as error:
            silent = "timed out" in str(error)
            raise ProtocolError("it is taken" if silent else str(error)) from error
        if challenge["kind"] != "challenge" or challenge.get("protocol") != messages.PROTOCOL:
            raise EnvironmentFault(
                f"{self._who} speaks protocol {challenge.get('protocol')}; this is "
                f"{messages.PROTOCOL}: copy the folder environments/external/client anew"
            )
        nonces = str(challenge.get("nonce")), secrets.token_hex(16)
        said = messages.proof(self._token, "agent", nonces)
        hello = {"kind": "hello", "nonce": nonces[1], "proof": said, "seed": self._seed}
        send(self._connection, hello)
        self._connection.settimeout(self._time_limit)
        spaces, _ = receive(self._connection)
        if spaces["kind"] == "refused" or spaces.get("proof") != messages.proof(
            self._token, "server", nonces
        ):
            raise EnvironmentFault(
                f"{self._who} has another token; set {messages.TOKEN} or {messages.TOKEN_PATH} to "
                "the same, there and here"
            )
        described = spaces.get("observation"), spaces.get("action")
        if self._spaces is None:
            self._observations, self._actions = (Codec(one, self._who) for one in described)
            self.observation_space = self._observations.space
            self.action_space = self._actions.space
            self._spaces = described
        elif described != self._spaces:
            raise EnvironmentFault(f"{self._who} has other spaces than the one before")


def _info(header: dict[str, Any]) -> dict[str, Any]:
    """Returns the info beside an observation, masks as arrays."""
    info = header.get("info") or {}
    return {name: np.asarray(one, np.int8) if isinstance(one, list) else one
            for name, one in info.items()}  # fmt: skip
