"""How the processes of one learner keep in step.

Rank 0 leads: it says what all do next, and each does just that, in that order. A step is said only
when every rank has its share of a batch, so that none waits within a collective for data. Words go
through a socket in the workspace, never through Courier, whose threads know no order; each is a
packet of a few bytes. A rank that is gone closes its end, and all others fail: the supervisor then
starts the whole gang again.
"""

from __future__ import annotations

import os
import pathlib
import select
import socket
import struct
import time
import zlib
from typing import Any

import jax
import numpy as np

from ...errors import RunError
from ..roles import calls
from ..supervision import role
from . import joining, meeting

Nest = Any

STEP, SHOW, END = b"step", b"show", b"end"
"""What rank 0 says: take a dispatch of steps; tell a sum of your state; leave."""
_READY = b"ready"
_SUM = struct.Struct("<4sI")
_PATIENCE = 60.0
_FAREWELL_SECONDS = 2.0


class GangError(RunError):
    """The processes of a learner are no longer one."""


class Alone:
    """A learner of one process, which need not ask anybody."""

    size = 1
    rank = 0

    def join(self) -> None:
        """Nobody is waited for."""

    def ready(self) -> bool:
        return True

    def wait(self, seconds: float) -> None:
        """Nothing is waited for."""

    def say(self, word: bytes) -> None:
        """Nobody listens."""

    def compare(self, state: Nest) -> None:
        """There is no other state."""

    def leave(self) -> None:
        """Nobody stays."""


class Leader:
    """Rank 0 of a gang."""

    rank = 0

    def __init__(self, size: int):
        self.size = size
        self._others: dict[int, socket.socket] = {}
        self._ready: set[int] = set()
        self._sums: dict[int, int] = {}

    def join(self) -> None:
        """Waits for the others; afterwards `jax.devices()` are those of all.

        Raises:
          GangError, RuntimeError: if they do not come.
        """
        address, path = _meeting()
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as server:
            path.unlink(missing_ok=True)
            server.bind(str(path))
            server.listen(self.size)
            joining.join(address, self.size, self.rank)
            server.settimeout(0.1)
            deadline = time.monotonic() + _PATIENCE
            while len(self._others) < self.size - 1:
                calls.check_stop()
                if time.monotonic() > deadline:
                    raise GangError(f"only {len(self._others) + 1} of {self.size} ranks came.")
                try:
                    other, _ = server.accept()
                except TimeoutError:
                    continue
                other.settimeout(_PATIENCE)
                self._others[int(_receive(other, "a rank"))] = other

    def ready(self) -> bool:
        """Whether every other rank has its share of a batch."""
        self._listen(0.0)
        return len(self._ready) == len(self._others)

    def wait(self, seconds: float) -> None:
        """Waits until one more is ready, at most so long."""
        self._listen(seconds)

    def say(self, word: bytes) -> None:
        """Has every other rank do what this one does next."""
        if word == STEP:
            self._ready.clear()
        for rank, other in self._others.items():
            _send(other, word, f"rank {rank}")

    def compare(self, state: Nest) -> None:
        """Compares states, for which `SHOW` was said before.

        Raises:
          GangError: if one differs: that rank has learned something else.
        """
        mine, deadline = checksum(state), time.monotonic() + _PATIENCE
        while len(self._sums) < len(self._others):
            calls.check_stop()
            if time.monotonic() > deadline:
                raise GangError(f"no sum of its state from a rank within {_PATIENCE:g} s.")
            self._listen(0.1)
        for rank, theirs in self._sums.items():
            if theirs != mine:
                raise GangError(
                    f"rank {rank} of the learner holds another state than rank 0 ({theirs:#x}, "
                    f"{mine:#x}): they do not learn together."
                )
        self._sums.clear()

    def leave(self) -> None:
        """Lets the others leave first: without this process they would end as failures."""
        for other in self._others.values():
            other.settimeout(_FAREWELL_SECONDS)
            try:
                other.send(END)
                while other.recv(64):
                    pass
            except OSError:
                continue

    def _listen(self, seconds: float) -> None:
        ranks = {other: rank for rank, other in self._others.items()}
        heard, _, _ = select.select(list(ranks), [], [], seconds)
        for other in heard:
            rank = ranks[other]
            message = _receive(other, f"rank {rank}")
            if message == _READY:
                self._ready.add(rank)
            else:
                self._sums[rank] = _SUM.unpack(message)[1]


class Follower:
    """Any other rank."""

    def __init__(self, size: int, rank: int):
        self.size, self.rank = size, rank
        self._leader = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)

    def join(self) -> None:
        """See `Leader.join`."""
        address, path = _meeting()
        joining.join(address, self.size, self.rank)
        self._leader.connect(str(path))  # It listened before it joined.
        _send(self._leader, b"%d" % self.rank, "rank 0")

    def announce(self) -> None:
        """Says that this rank has its share of a batch; once before every step."""
        _send(self._leader, _READY, "rank 0")

    def listen(self, seconds: float) -> bytes | None:
        """What rank 0 says next; None if it says nothing within the time."""
        heard, _, _ = select.select([self._leader], [], [], seconds)
        return _receive(self._leader, "rank 0") if heard else None

    def show(self, state: Nest) -> None:
        """Answers to `SHOW`."""
        _send(self._leader, _SUM.pack(b"sum:", checksum(state)), "rank 0")


def of(size: int) -> Alone | Leader:
    """What the first process of a learner of `size` processes holds."""
    return Alone() if size == 1 else Leader(size)


def checksum(state: Nest) -> int:
    """A sum of all bytes of a nest of numpy arrays: equal states have equal sums."""
    total = 0
    for leaf in jax.tree.leaves(state):
        total = zlib.crc32(np.ascontiguousarray(leaf).reshape(-1).view(np.uint8).data, total)
    return total


def _meeting() -> tuple[str, pathlib.Path]:
    """Where this life of the gang meets: an address for jax, a socket for words."""
    address = os.environ[meeting.ADDRESS]
    port = address.rpartition(":")[2]
    return address, role.current().workspace / f"gang-{port}"


def _send(other: socket.socket, message: bytes, whom: str) -> None:
    try:
        other.send(message)
    except OSError as error:
        raise GangError(f"{whom} of the learner is gone ({error.strerror or error}).") from error


def _receive(other: socket.socket, whom: str) -> bytes:
    try:
        message = other.recv(64)
    except OSError as error:
        raise GangError(f"{whom} of the learner is gone ({error.strerror or error}).") from error
    if not message:
        raise GangError(f"{whom} of the learner is gone.")
    return message
