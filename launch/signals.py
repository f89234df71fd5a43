"""Asking a run to stop, from outside (Ctrl-C, SIGTERM) or from within.

Python runs a signal's handler between two of its own instructions: not while the process is within
a call that takes long, such as a compilation. So a thread hears of signals too, at once.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

_NUMBERS = (signal.SIGINT, signal.SIGTERM)
_PATIENCE = 0.5
"""Seconds in which the main thread mostly acts on a signal by itself."""


class Stop:
    """Set once, looked at before every step."""

    _number: int | None = None

    def request(self, signal_number: int) -> None:
        self._number = signal_number

    @property
    def signal_number(self) -> int | None:
        """Of the signal that came; None: none did."""
        return self._number

    @property
    def requested(self) -> bool:
        return self.signal_number is not None


@contextlib.contextmanager
def caught(
    stop: Stop | None = None, say: Callable[[str], None] = lambda line: None
) -> Iterator[Stop]:
    """Turns the first SIGINT or SIGTERM into a request; a second one ends the process at once.

    Only the main thread can do this; elsewhere nothing is caught.

    Args:
      stop: is requested; None: a new one.
      say: told, in another thread, where the request is not met at once.
    """
    stop = stop or Stop()
    earlier: dict[int, Any] = {}

    def handle(number: int, frame: object) -> None:
        stop.request(number)
        restore()

    def restore() -> None:
        for number, handler in earlier.items():
            signal.signal(number, handler)

    def hear(ear: _Ear) -> None:
        ear.wait()
        number = ear.wait(_PATIENCE)
        if number is None:
            say("stopping: a checkpoint is saved first; a second signal ends at once, without it")
            number = ear.wait()
        ear.wait(_PATIENCE)
        os._exit(128 + (number or 0))

    if threading.current_thread() is not threading.main_thread():
        yield stop
        return
    with _heard(hear):
        for number in _NUMBERS:
            earlier[number] = signal.signal(number, handle)
        try:
            yield stop
        finally:
            restore()


@contextlib.contextmanager
def prompt() -> Iterator[None]:
    """Has Ctrl-C end the process, with code 130, also while it is within a call that takes long.

    Not within `caught`, nor in another thread than the main one.
    """

    def hear(ear: _Ear) -> None:
        ear.wait()
        ear.wait(_PATIENCE)
        with contextlib.suppress(OSError, ValueError, AttributeError):
            print("troupe: interrupted.", file=sys.stderr, flush=True)
        os._exit(128 + signal.SIGINT)

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    with _heard(hear):
        yield


class _Deaf(Exception):
    """No more is to be heard."""


class _Ear:
    """The file on which a thread hears of signals as they come."""

    def __init__(self) -> None:
        self._reader, self.writer = socket.socketpair()
        self.writer.setblocking(False)

    def wait(self, seconds: float | None = None) -> int | None:
        """The number of the next signal that ends; None: there was none in this time.

        Raises:
          _Deaf: if there will be none.
        """
        while True:
            if not select.select([self._reader], [], [], seconds)[0]:
                return None
            number = self._reader.recv(1)
            if not number:
                raise _Deaf
            if number[0] in _NUMBERS:
                return number[0]

    def close(self) -> None:
        self._reader.close()


@contextlib.contextmanager
def _heard(hear: Callable[[_Ear], None]) -> Iterator[None]:
    """While it lasts, a thread runs `hear`."""
    ear = _Ear()

    def run() -> None:
        with contextlib.suppress(_Deaf):
            hear(ear)

    thread = threading.Thread(target=run, name="signals", daemon=True)
    thread.start()
    before = signal.set_wakeup_fd(ear.writer.fileno(), warn_on_full_buffer=False)
    try:
        yield
    finally:
        signal.set_wakeup_fd(before)
        ear.writer.close()
        thread.join()
        ear.close()
