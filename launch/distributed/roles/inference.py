"""Inference servers as roles, and their proxy in actors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ....agents.acting.sessions import Answer, Begin, Leaves
from ....agents.generation.server import make_server
from ....agents.variables.client import VariableClient
from ...errors import RequestError
from ..supervision import role
from . import rpc

if TYPE_CHECKING:
    from ....agents.programs.placement import Partition
    from ...factory import ComponentFactory
    from .variable_board import VariableBoard


class InferenceRole(rpc.Service):
    """Chooses actions for actors; parameters never leave it."""

    def __init__(
        self,
        factory: ComponentFactory,
        batch_size: int,
        wait_seconds: float,
        capacity: int,
        board: VariableBoard,
        partition: Partition | None = None,
    ):
        """Makes nothing yet.

        Args:
          factory: of the policy.
          batch_size, wait_seconds, capacity: as of `SessionServer`.
          board: has the variables.
          partition: over which the policy is computed; None: one device.
        """
        self._factory, self._board = factory, board
        self._options: dict[str, Any] = {
            "batch_size": batch_size,
            "wait_seconds": wait_seconds,
            "capacity": capacity,
            "device": partition,
        }

    def prepare(self) -> None:
        spread = self._options["device"] is not None
        self._reader = self._board.reader(**({"on_host": True} if spread else {}))
        self._inference = make_server(
            self._factory.policy,
            VariableClient(self._reader),
            self._factory.spec.observations,
            **self._options,
        )
        self._inference.warm_up(rpc.check_stop)

    def infer(
        self,
        client: str,
        session: str,
        count: int,
        leaves: Leaves,
        first: np.ndarray,
        begin: Begin | None,
    ) -> Answer | None:
        """See `SessionServer.infer`."""
        return self._inference.infer(client, session, count, leaves, first, begin)

    def run(self) -> None:
        while not role.pause(0.0):
            self._inference.serve_once(0.2)
            # A failure in serving goes to who asked; that of the reader is this role's own.
            _ = self._reader.version


class RemotePolicy:
    """An inference server as a source that actors have instead of variables."""

    version = 0

    def __init__(self, server: rpc.Remote, client: str):
        """Takes the server, and the name by which it knows the actor."""
        self._server, self._client = server, client

    def infer(
        self, session: str, count: int, leaves: Leaves, first: np.ndarray, begin: Begin | None
    ) -> Answer | None:
        """See `SessionServer.infer`; waits for a server that is started again."""
        return rpc.insist(self._server.infer, self._client, session, count, leaves, first, begin)

    def get_variables(self, names: Sequence[str] = ("policy",)) -> list[Any]:
        """Raises RequestError: they never leave the server."""
        raise RequestError(
            "an actor asked for parameters, which actors of inference servers do not have: have "
            "the builder's make_actor call that of Builder, or launch without inference servers."
        )
