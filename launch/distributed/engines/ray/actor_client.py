"""Calls between roles through Ray."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Any

import ray
from ray import exceptions

from ...roles.rpc import RemoteError, Unreachable
from .direct import FAILED, ConnectionLost, DirectConnection
from .host import OTHER, STARTING

CALL_SECONDS = 2.0


class RayRemote:
    """Another role, by its public methods (`roles.rpc.Remote`).

    A role that is started again is another actor of the same name, which is found anew. Every call
    says of which incarnation of the run it comes.
    """

    def __init__(
        self,
        run: str,
        incarnation: int,
        name: str,
        seconds: float = CALL_SECONDS,
        *,
        direct: bool = False,
    ):
        """Connects to nothing yet.

        Args:
          run: the namespace of its actors.
          incarnation: of the run, in which both roles are.
          name: of the other role.
          seconds: how long an answer may take.
          direct: True: calls go through sockets, a connection for each thread that calls, where
            the other's node lets them; their arguments and answers are what `pickle` takes.
        """
        self._run, self._incarnation, self._name, self._seconds = run, incarnation, name, seconds
        self._is_direct = direct
        self._actor: Any = None
        self._connections = threading.local()

    def __reduce__(self) -> tuple[Any, ...]:
        return functools.partial(RayRemote, direct=self._is_direct), (
            self._run,
            self._incarnation,
            self._name,
            self._seconds,
        )

    def patient(self, seconds: float) -> RayRemote:
        """The same role, whose answers may take so long."""
        names = self._run, self._incarnation, self._name
        return RayRemote(*names, seconds, direct=self._is_direct)

    def __getattr__(self, method: str) -> Callable[..., Any]:
        if method.startswith("_"):
            raise AttributeError(method)

        def call(*args: Any) -> Any:
            return self._call(method, args)

        self.__dict__[method] = call
        return call

    def _call(self, method: str, args: tuple[Any, ...]) -> Any:
        try:
            if self._actor is None:
                self._actor = self._find()
            state, value = self._ask(self._actor, method, args)
        except exceptions.RayTaskError as error:
            last = str(error).strip().splitlines()[-1]
            raise RemoteError(f"the {self._name} at {method}: {last}") from None
        except exceptions.GetTimeoutError:
            raise Unreachable(f"no answer from the {self._name}") from None
        except (exceptions.RayError, ConnectionLost):
            self._actor = None
            raise Unreachable(f"no answer from the {self._name}") from None
        if state == STARTING:
            raise Unreachable(f"the {self._name} is not ready yet")
        if state == OTHER and value > self._incarnation:
            raise RemoteError(
                f"the {self._name} at {method}: incarnation {self._incarnation} of the run "
                "has ended, and incarnation "
                f"{value} has taken its place"
            )
        if state == OTHER:
            self._actor = None  # It is about to end.
            raise Unreachable(f"the {self._name} is still that of incarnation {value}")
        if state == FAILED:
            raise RemoteError(f"the {self._name} at {method}: {value}")
        return value

    def _ask(self, actor: Any, method: str, args: tuple[Any, ...]) -> tuple[str, Any]:
        """Returns a state of `host` and what follows."""
        connection = self._connection(actor) if self._is_direct else None
        if connection is not None:
            return connection.call(self._incarnation, method, args)
        answer = actor.call.remote(self._incarnation, method, args)
        return ray.get(answer, timeout=self._seconds)

    def _connection(self, actor: Any) -> DirectConnection | None:
        """Returns that of this thread; None: the other's node lets none in."""
        known = getattr(self._connections, "known", None)
        if known is None or known[0] is not actor:
            address = ray.get(actor.direct.remote(), timeout=self._seconds)
            try:
                known = actor, DirectConnection(address, self._seconds)
            except OSError:
                known = actor, None
            self._connections.known = known
        return known[1]

    def _find(self) -> Any:
        """Returns the actor of that name.

        Raises:
          Unreachable: if there is none.
        """
        try:
            return ray.get_actor(self._name, namespace=self._run)
        except ValueError:
            raise Unreachable(f"there is no {self._name} yet") from None
