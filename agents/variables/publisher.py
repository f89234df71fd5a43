"""Publishes a learner's variables as numbered versions."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from .version_board import Shelf

Nest = Any
_LEAST_SECONDS = 0.01
_BUSY = 20
"""A turn of the thread is followed by a rest of so many times its length, or of its period."""


class Publisher:
    """Publishes a learner's variables from a thread of its own; the learner never waits.

    The learner gathers and offers them when they are `wanted`: at first, and when somebody asked
    the server since the newest version. A reader that asks every P seconds so finds a version that
    was learned within those P; where nobody reads nothing is gathered. Versions that take little to
    publish follow each other sooner, so that quick actors are not far behind.

    Versions are numbered on from the newest on the shelf.
    """

    def __init__(
        self,
        shelf: Shelf,
        server: Any,
        *,
        period: float = 0.1,
        failed: tuple[type[Exception], ...] = (OSError,),
    ):
        """Starts the thread.

        Args:
          shelf: where versions are laid down.
          server: a `VariableServer`, near or far.
          period: least seconds between two versions, and between two looks at who asked; less
            where the thread is busy for a small part of it.
          failed: what a call of the server raises when it cannot be reached.
        """
        self._shelf, self._server = shelf, server
        self._period, self._failed = period, failed
        self._changed = threading.Condition()
        self._offered: tuple[int | None, Mapping[str, Nest], Callable[[], bool] | None] | None
        self._offered = None
        self._then: Callable[[], bool] | None = None
        self._closed = False
        self._version, self._place = shelf.newest()
        self._reserved = self._version
        self.gathers = 0
        """The number of times that variables were brought to the host."""
        self.wanted = True
        """True if a newer version would be read."""
        self.error: BaseException | None = None
        """The error that ended the thread; None: it did not fail."""
        self._thread = threading.Thread(target=self._run, name="publisher", daemon=True)
        self._thread.start()

    @property
    def version(self) -> int:
        """The newest that was laid down."""
        return self._version

    def reserve(self) -> int:
        """A number for a version that no other has ever had or will have, in later lives either.

        For one whose parts several publishers offer.
        """
        self._reserved = max(self._reserved, self._version) + 1
        self._shelf.reserve(self._reserved)
        return self._reserved

    def offer(
        self,
        variables: Mapping[str, Nest],
        version: int | None = None,
        then: Callable[[], bool] | None = None,
    ) -> None:
        """Has these published, unless others are offered before it comes to that.

        Args:
          variables: arrays that stay as they are.
          version: the number, reserved by this publisher or another; None: the next.
          then: called once they are announced, until it returns True or is that of a newer version.
            Somebody waits for these: they are published at once, and newer ones are wanted next.
        """
        with self._changed:
            self._offered = version, variables, then
            self.wanted = False
            self._changed.notify()

    def flush(self, timeout: float) -> bool:
        """Waits until all that was offered is laid down and announced; says whether it was."""
        deadline = time.monotonic() + timeout
        while time.monotonic() < deadline and self._thread.is_alive():
            if self._offered is None and self._announced():
                return True
            time.sleep(0.01)
        return False

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify()
        self._thread.join(5.0)

    def _run(self) -> None:
        written, wait = -math.inf, self._period
        try:
            while not self._closed:
                with self._changed:
                    # Without an offer too, to see whether somebody asked, or the server forgot.
                    # An offer ends the wait; a thread that never waits would slow the learner's.
                    self._changed.wait_for(self._has_news, max(wait, _LEAST_SECONDS))
                if self._offered is not None and self._offered[2] is None:
                    time.sleep(max(0.0, written + wait - time.monotonic()))
                began = time.monotonic()
                offered = self._offered
                is_new = offered is not None
                if offered is not None:
                    self._write(*offered[:2])
                    self._then = offered[2]
                    with self._changed:
                        if self._offered is offered:
                            self._offered = None
                            self.wanted = self._then is not None
                del offered  # The arrays are not to be kept until the next come.
                # Newer ones are wanted after the rest: what is offered then is written at once.
                if self._announced(wants=not is_new) and self._then is not None and self._then():
                    self._then = None
                ended = time.monotonic()
                wait = min(self._period, max(_LEAST_SECONDS, _BUSY * (ended - began)))
                if is_new:
                    written = ended
        except BaseException as error:
            self.error = error
            raise

    def _has_news(self) -> bool:
        return self._offered is not None or self._closed

    def _write(self, version: int | None, variables: Mapping[str, Nest]) -> None:
        self.gathers += 1
        number = self._version + 1 if version is None else version
        self._place = self._shelf.put(number, variables)
        self._version = number

    def _announced(self, wants: bool = False) -> bool:
        """Sees to it that the server knows the newest version; says whether it has all of it.

        Args:
          wants: want a newer one, where somebody has asked since.
        """
        if self._place is None:
            return False
        try:
            latest, asked = self._server.look()
            if latest < self._version:
                return self._server.announce(self._version, self._place)
            if wants and asked and self._offered is None:
                self.wanted = True
            return True
        except self._failed:
            return False
