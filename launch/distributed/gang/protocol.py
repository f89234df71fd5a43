"""The messages by which the processes of one learner keep in step.

Rank 0 leads: it says what all do next, and each does just that, in that order. A step is said only
when every rank has its share of a batch, so that none waits within a collective for data. Words are
a few bytes each. They go through a socket, in the workspace where all are on one machine, and never
through the calls of an engine, whose threads know no order. A rank that is gone closes its end, and
all others fail: the supervisor then starts the whole gang again.
"""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import select
import socket
import threading
import time
import zlib
from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np

from ...errors import RunError
from ...files.frozen import Shards, fetch, is_spread
from ..listener import LENGTH, Listener, framed
from ..roles import rpc
from ..supervision import role
from . import joining, rendezvous

Nest = Any

STEP, GATHER, CUT, SAVE, FROM, END = "step", "gather", "cut", "save", "from", "end"
"""Messages of rank 0: take a dispatch of steps; take part in gathering variables, or publish your
part of them as the version of that number; copy your state and tell the copy's sums; write the
copy's shards into a folder; go on from a checkpoint; leave. What follows `CUT` and `SAVE` is done
beside learning, in a thread of every rank."""
_READY, _SUMS, _SAVED = "ready", "sums", "saved"
"""Messages of the others: that they have their share of a batch; their sums; that they have
written, or why they could not."""
_PATIENCE = 60.0
_GLANCE_SECONDS = 0.02
_SAVE_PATIENCE = 600.0
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

    def say(self, word: str, detail: str = "") -> None:
        """Nobody listens."""

    def compare(self, state: Nest) -> None:
        """There is no other state."""

    def saving(self, folder: pathlib.Path) -> Callable[[], None]:
        """Nobody else has anything to write."""
        return lambda: None

    def leave(self) -> None:
        """Nobody stays."""


class Leader:
    """Rank 0 of a gang."""

    rank = 0

    def __init__(self, size: int):
        self.size = size
        self._others: dict[int, socket.socket] = {}
        self._ready: set[int] = set()
        # Two threads speak and listen: that of the steps, and that of a save.
        self._lock = threading.RLock()
        self._sums: dict[int, dict[str, int]] = {}
        self._saved: dict[int, str] = {}

    def join(self) -> None:
        """Waits for the others; afterwards `jax.devices()` are those of all.

        Raises:
          GangError, RuntimeError: if they do not come.
        """
        where, token = _rendezvous()
        with socket.socket(_family(where)) as server:
            server.bind(where)
            listener = Listener(server, token)
            joining.join(os.environ[rendezvous.ADDRESS], self.size, self.rank)
            deadline = time.monotonic() + _PATIENCE
            with contextlib.closing(listener):
                while len(self._others) < self.size - 1:
                    rpc.check_stop()
                    if time.monotonic() > deadline:
                        raise GangError(f"only {len(self._others) + 1} of {self.size} ranks came.")
                    for name, other in listener.wait(0.1):
                        self._let_in(name, other)

    def _let_in(self, name: str, other: socket.socket) -> None:
        rank = int(name) if name.isdecimal() else 0
        if not 0 < rank < self.size or rank in self._others:
            other.close()
            return
        other.settimeout(_PATIENCE)
        self._others[rank] = other

    def ready(self) -> bool:
        """True if every other rank has its share of a batch."""
        self._listen()
        return len(self._ready) == len(self._others)

    def wait(self, seconds: float) -> None:
        """Waits until one more is ready, at most so long."""
        select.select(list(self._others.values()), [], [], seconds)
        self._listen()

    def say(self, word: str, detail: str = "") -> None:
        """Has every other rank do what this one does next."""
        with self._lock:
            if word == STEP:
                self._ready.clear()
            for rank, other in self._others.items():
                _send(other, f"{word} {detail}", f"rank {rank}")

    def compare(self, state: Nest) -> None:
        """Compares copies of states, for which `CUT` was said before: the sums of what several
        ranks hold.

        Args:
          state: this rank's copy.

        Raises:
          GangError: if one differs: that rank has learned something else.
        """
        self._sums[0] = sums(state)
        self._wait_for(self._sums, _PATIENCE, "no sums of its state")
        held: dict[str, tuple[int, int]] = {}
        for rank, theirs in sorted(self._sums.items()):
            for ranks, one in theirs.items():
                first, expected = held.setdefault(ranks, (rank, one))
                if one != expected:
                    raise GangError(
                        f"rank {rank} of the learner holds another state than rank {first} "
                        f"({one:#x}, {expected:#x}): they do not learn together."
                    )
        self._sums.clear()

    def saving(self, folder: pathlib.Path) -> Callable[[], None]:
        """Has every other rank write its shards into a folder; returns what waits for that.

        Raises:
          GangError, OSError: by what is returned: if one is gone, or could not write.
        """
        self._saved = {0: ""}
        self.say(SAVE, folder.name)

        def wait() -> None:
            self._wait_for(self._saved, _SAVE_PATIENCE, "no shards")
            for rank, failure in self._saved.items():
                if failure:
                    raise OSError(f"rank {rank}: {failure}")

        return wait

    def _wait_for(self, answers: Mapping[int, Any], seconds: float, missing: str) -> None:
        deadline = time.monotonic() + seconds
        while len(answers) < self.size:
            if time.monotonic() > deadline:
                raise GangError(f"{missing} from a rank within {seconds:g} s.")
            time.sleep(_GLANCE_SECONDS)  # Not within the lock: the other thread learns.
            self._listen()

    def leave(self) -> None:
        """Lets the others leave first: without this process they would end as failures."""
        for other in self._others.values():
            other.settimeout(_FAREWELL_SECONDS)
            try:
                other.sendall(framed(END))
                while other.recv(1 << 16):
                    pass
            except OSError:
                continue

    def _listen(self) -> None:
        """Takes in what the others have said."""
        with self._lock:
            ranks = {other: rank for rank, other in self._others.items()}
            heard, _, _ = select.select(list(ranks), [], [], 0.0)
            for other in heard:
                rank = ranks[other]
                word, _, detail = _receive(other, f"rank {rank}").partition(" ")
                if word == _READY:
                    self._ready.add(rank)
                elif word == _SUMS:
                    self._sums[rank] = json.loads(detail)
                else:
                    self._saved[rank] = detail


class Follower:
    """Any other rank."""

    def __init__(self, size: int, rank: int):
        self.size, self.rank = size, rank
        self._leader: socket.socket
        self._lock = threading.Lock()

    def join(self) -> None:
        """See `Leader.join`."""
        where, token = _rendezvous()
        joining.join(os.environ[rendezvous.ADDRESS], self.size, self.rank)
        self._leader = socket.socket(_family(where))
        self._leader.connect(where)  # It listened before it joined.
        _send(self._leader, f"{self.rank} {token}", "rank 0")

    def announce(self) -> None:
        """Says that this rank has its share of a batch; once before every step."""
        self._say(_READY)

    def listen(self, seconds: float) -> tuple[str, str] | None:
        """Returns the next message of rank 0, a word and its detail; None: none within the time."""
        heard, _, _ = select.select([self._leader], [], [], seconds)
        if not heard:
            return None
        word, _, detail = _receive(self._leader, "rank 0").partition(" ")
        return word, detail

    def show(self, state: Nest) -> None:
        """Answers to `CUT`, with the copy of the state."""
        self._say(f"{_SUMS} {json.dumps(sums(state))}")

    def saved(self, failure: object = "") -> None:
        """Answers to `SAVE`."""
        self._say(f"{_SAVED} {str(failure)[:1000]}")

    def _say(self, message: str) -> None:
        with self._lock:  # Two threads speak: that of the steps, and that of a save.
            _send(self._leader, message, "rank 0")


def of(size: int) -> Alone | Leader:
    """Makes the end of the first process of a learner of `size` processes."""
    return Alone() if size == 1 else Leader(size)


def sums(state: Nest) -> dict[str, int]:
    """Sums of what several processes hold alike, by the ranks of those that do.

    Args:
      state: arrays and `Shards`; numpy arrays are taken to be in every process.

    Returns:
      For every set of ranks that hold copies of the same shards, a sum of this process's copies.
    """
    found: dict[str, int] = {}
    everybody = ",".join(map(str, range(jax.process_count())))
    for leaf in jax.tree.leaves(state):
        if not isinstance(leaf, Shards):
            # A spread array is looked at as its shards; all else is everybody's.
            spread = isinstance(leaf, jax.Array) and is_spread(leaf)
            leaf = Shards.of(leaf) if spread else leaf
        copies = [(everybody, leaf)]
        if isinstance(leaf, Shards):
            holders: dict[Any, set[int]] = {}
            for device, index in leaf.sharding.devices_indices_map(leaf.shape).items():
                holders.setdefault(_place(index), set()).add(device.process_index)
            held = sorted(leaf.shards, key=lambda one: _place(one[0]))
            copies = [(",".join(map(str, sorted(holders[_place(i)]))), x) for i, _, x in held]
        for ranks, data in copies:
            if "," in ranks:
                words = np.asarray(fetch(data), order="C").reshape(-1).view(np.uint8).data
                found[ranks] = zlib.crc32(words, found.get(ranks, 0))
    return found


def _place(index: tuple[slice, ...]) -> tuple[int, ...]:
    return tuple(one.start or 0 for one in index)


def _rendezvous() -> tuple[Any, str]:
    """Returns the address of messages in this incarnation of the gang, and its token."""
    where = os.environ.get(rendezvous.WORDS)
    if where is not None:
        host, _, port = where.rpartition(":")
        return (host, int(port)), os.environ[rendezvous.TOKEN]
    port = os.environ[rendezvous.ADDRESS].rpartition(":")[2]
    return str(role.current().workspace / f"gang-{port}"), ""  # Which only this user can reach.


def _family(where: Any) -> socket.AddressFamily:
    return socket.AF_UNIX if isinstance(where, str) else socket.AF_INET


def _send(other: socket.socket, message: str, whom: str) -> None:
    try:
        other.sendall(framed(message))
    except OSError as error:
        raise GangError(f"{whom} of the learner is gone ({error.strerror or error}).") from error


def _receive(other: socket.socket, whom: str) -> str:
    try:
        (length,) = LENGTH.unpack(_read(other, LENGTH.size))
        return _read(other, length).decode()
    except EOFError:
        raise GangError(f"{whom} of the learner is gone.") from None
    except OSError as error:
        raise GangError(f"{whom} of the learner is gone ({error.strerror or error}).") from error


def _read(other: socket.socket, length: int) -> bytes:
    content = b""
    while len(content) < length:
        more = other.recv(length - len(content))
        if not more:
            raise EOFError
        content += more
    return content
