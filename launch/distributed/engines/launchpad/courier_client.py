"""Calls between roles through Courier."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pybind11_abseil.status import StatusCode, StatusNotOk

from ...roles.rpc import RemoteError, Unreachable

CALL_SECONDS = 2.0
_NO_ANSWER = (StatusCode.DEADLINE_EXCEEDED, StatusCode.UNAVAILABLE, StatusCode.CANCELLED)


class CourierRemote:
    """Another role, by its public methods (`roles.rpc.Remote`)."""

    def __init__(self, client: Any, name: str):
        """Wraps a connection.

        Args:
          client: a `courier.Client` with a time limit.
          name: of the other role, for messages.
        """
        self._client, self._name = client, name

    def __getattr__(self, method: str) -> Callable[..., Any]:
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
