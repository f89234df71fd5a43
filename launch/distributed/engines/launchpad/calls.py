"""Calls between roles: with a time limit, and with two errors, no answer and a bad one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pybind11_abseil.status import StatusCode, StatusNotOk

from ....errors import RunError
from ...supervision import role

CALL_SECONDS = 2.0
_NO_ANSWER = (StatusCode.DEADLINE_EXCEEDED, StatusCode.UNAVAILABLE, StatusCode.CANCELLED)


class Unreachable(OSError):
    """Nobody answered in time."""


class RemoteError(RunError):
    """The other role failed at the call."""


class Stopped(Exception):
    """This role is asked to end."""


class Remote:
    """Another role, by its public methods."""

    def __init__(self, client: Any, name: str):
        """Wraps a connection.

        Args:
          client: a `courier.Client` with a time limit.
          name: of the other role, for messages.
        """
        self._client, self._name = client, name

    def __getattr__(self, method: str) -> Callable[..., Any]:
        """The method of that name of the other role.

        It raises `Unreachable`, or `RemoteError` with what the other role raised.
        """
        if method.startswith("_"):
            raise AttributeError(method)
        function = getattr(self._client, method)

        def call(*args: Any) -> Any:
            try:
                return function(*args)
            except StatusNotOk as error:
                if getattr(error, "code", None) in _NO_ANSWER:
                    raise Unreachable(f"no answer from the {self._name}") from None
                last = str(error).strip().splitlines()[-1]
                raise RemoteError(f"the {self._name} at {method}: {last}") from None

        self.__dict__[method] = call
        return call


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
