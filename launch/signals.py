"""Asking a run to stop, from outside (Ctrl-C, SIGTERM) or from within."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator
from typing import Any


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
def caught() -> Iterator[Stop]:
    """Turns the first SIGINT or SIGTERM into a request; a second one ends the process at once.

    Only the main thread can do this; elsewhere nothing is caught.
    """
    stop = Stop()
    earlier: dict[int, Any] = {}

    def handle(number: int, frame: object) -> None:
        stop.request(number)
        restore()

    def restore() -> None:
        for number, handler in earlier.items():
            signal.signal(number, handler)

    try:
        for number in (signal.SIGINT, signal.SIGTERM):
            earlier[number] = signal.signal(number, handle)
    except ValueError:  # Not the main thread.
        earlier.clear()
    try:
        yield stop
    finally:
        restore()
