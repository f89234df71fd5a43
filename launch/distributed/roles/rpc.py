"""Calls between roles, as roles may expect them to be, whatever carries them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from ...errors import RunError
from ..supervision import role


class Unreachable(OSError):
    """Nobody answered in time; whether the call was heard is not known."""


class RemoteError(RunError):
    """The other role failed at the call."""


class Stopped(Exception):
    """This role is asked to end."""


class Remote(Protocol):
    """Another role, by the names of its public methods (see `Service`)."""

    def __getattr__(self, method: str, /) -> Callable[..., Any]:
        """The method of that name: it answers within seconds.

        It raises `Unreachable`, or `RemoteError` with what the other role raised.
        """


class Service:
    """Base of roles whose public methods others call, but for these two.

    An engine makes the role, calls `prepare`, answers calls from then on in threads of its own, and
    ends with `run`.
    """

    def prepare(self) -> None:
        """Makes the role ready for calls; none comes before."""

    def run(self) -> None:
        """Returns when the role is asked to end."""
        while not role.pause(0.5):
            pass


def insist(function: Callable[..., Any], *args: Any) -> Any:
    """Calls until somebody answers, giving signs of life in between.

    Raises:
      Stopped: if this role is asked to end before.
    """
    while True:
        try:
            return function(*args)
        except Unreachable:
            if role.pause(0.1):
                raise Stopped from None


def check_stop() -> None:
    """Gives a sign of life.

    Raises:
      Stopped: if this role is asked to end.
    """
    if role.pause(0.0):
        raise Stopped
