"""Asking a run to stop, from outside (Ctrl-C, SIGTERM) or from within."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator


class Stop:
    """Set once, looked at before every step."""

    def __init__(self) -> None:
        self.signal_number: int | None = None

    def request(self, signal_number: int) -> None:
        self.signal_number = signal_number

    @property
    def requested(self) -> bool:
        return self.signal_number is not None


@contextlib.contextmanager
def caught() -> Iterator[Stop]:
    """Turns the first SIGINT or SIGTERM into a request; a second one ends the process at once.

    Only the main thread can do this; elsewhere nothing is caught.
    """
    stop = Stop()
    earlier: dict[int, object] = {}

    def handle(number: int, frame: object) -> None:
        stop.request(number)
        restore()

    def restore() -> None:
        for number, handler in earlier.items():
            signal.signal(number, handler)  # type: ignore[arg-type]

    try:
        for number in (signal.SIGINT, signal.SIGTERM):
            earlier[number] = signal.signal(number, handle)
    except ValueError:  # Not the main thread.
        earlier.clear()
    try:
        yield stop
    finally:
        restore()
