"""Signs of life: how a supervisor tells a role that works from one that hangs.

A role has a row of two times in a file that it and its supervisor map into memory. A thread of its
own writes the first, which stops when the process is stopped; the role's loop writes the second,
which stops when the loop hangs: in an environment, say. Writing one takes about a microsecond.
"""

from __future__ import annotations

import mmap
import pathlib
import threading
import time

FILE = "board"
"""Name of the file in a workspace."""
ALIVE, LOOP = 0, 1
"""Columns of a row."""
_BYTES = 8
_ALIVE_PERIOD = 0.5


class Board:
    """The rows of all roles of a program."""

    def __init__(self, path: pathlib.Path, num_roles: int | None = None):
        """Maps the file; makes it where `num_roles` is given."""
        if num_roles is not None:
            path.write_bytes(bytes(2 * _BYTES * num_roles))
        self.path = path
        with path.open("r+b") as file:
            # One store writes a number, so that no reader finds half of one, as with `struct`.
            self._times = memoryview(mmap.mmap(file.fileno(), 0)).cast("d")

    def read(self, index: int) -> tuple[float, float]:
        """Returns the times of the last signs of the process and of its loop; 0 if none yet."""
        return self._times[2 * index + ALIVE], self._times[2 * index + LOOP]

    def put(self, index: int, alive: float | None, loop: float | None) -> None:
        """Writes down signs that came from elsewhere, as the seconds since each; None: none yet."""
        now = time.monotonic()
        for which, age in ((ALIVE, alive), (LOOP, loop)):
            if age is not None:
                self._times[2 * index + which] = now - age

    def clear(self, index: int) -> None:
        self._times[2 * index + ALIVE] = self._times[2 * index + LOOP] = 0.0

    def sign(self, index: int, which: int) -> None:
        self._times[2 * index + which] = time.monotonic()


_current = threading.local()


def attach(board: Board, index: int) -> threading.Event:
    """Makes this thread's `beat` write to a row, and starts the thread of its first time.

    Returns:
      The event that ends that thread.
    """
    _current.row = (board, index)
    done = threading.Event()

    def alive() -> None:
        while not done.is_set():
            board.sign(index, ALIVE)
            done.wait(_ALIVE_PERIOD)

    threading.Thread(target=alive, name="heartbeat", daemon=True).start()
    return done


def beat() -> None:
    """Says that this thread's role goes on. Does nothing in a thread that is no role's."""
    row = getattr(_current, "row", None)
    if row is not None:
        row[0].sign(row[1], LOOP)


class Crew:
    """Threads that share one role's row: the role goes on only while each of them does."""

    def __init__(self, size: int):
        self._times = [0.0] * size

    def join(self, index: int) -> None:
        """Makes this thread's `beat` count for its member of the crew."""
        _current.row = (self, index)

    def sign(self, index: int, which: int) -> None:
        self._times[index] = time.monotonic()

    def leave(self, index: int) -> None:
        """No beat of this member is expected any more."""
        self._times[index] = float("inf")

    def all_beat_within(self, seconds: float) -> bool:
        return min(self._times) > time.monotonic() - seconds
