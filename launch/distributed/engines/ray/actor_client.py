"""Calls between roles through Ray."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ray
from ray import exceptions

from ...roles.rpc import RemoteError, Unreachable
from .host import FAILED, OTHER, STARTING

CALL_SECONDS = 2.0


class RayRemote:
    """Another role, by its public methods (`roles.rpc.Remote`).

    A role that is started again is another actor of the same name, which is found anew. Every call
    says of which incarnation of the run it comes.
    """

    def __init__(self, run: str, incarnation: int, name: str, seconds: float = CALL_SECONDS):
        """Connects to nothing yet.

        Args:
          run: the namespace of its actors.
          incarnation: of the run, in which both roles are.
          name: of the other role.
          seconds: how long an answer may take.
        """
        self._run, self._incarnation, self._name, self._seconds = run, incarnation, name, seconds
        self._actor: Any = None

    def __reduce__(self) -> tuple[Any, ...]:
        return RayRemote, (self._run, self._incarnation, self._name, self._seconds)

    def patient(self, seconds: float) -> RayRemote:
        """The same role, whose answers may take so long."""
        return RayRemote(self._run, self._incarnation, self._name, seconds)

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
            answer = self._actor.call.remote(self._incarnation, method, args)
            state, value = ray.get(answer, timeout=self._seconds)
        except exceptions.RayTaskError as error:
            last = str(error).strip().splitlines()[-1]
            raise RemoteError(f"the {self._name} at {method}: {last}") from None
        except exceptions.GetTimeoutError:
            raise Unreachable(f"no answer from the {self._name}") from None
        except exceptions.RayError:
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

    def _find(self) -> Any:
        """Returns the actor of that name.

        Raises:
          Unreachable: if there is none.
        """
        try:
            return ray.get_actor(self._name, namespace=self._run)
        except ValueError:
            raise Unreachable(f"there is no {self._name} yet") from None
