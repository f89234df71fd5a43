"""A replay in a Reverb server as the roles that do not learn from it hold it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import reverb

from ..items import ReplaySpec
from ..nests import Nest
from ..remote import RemoteProxy
from .adder import ReverbAdder
from .tables import TABLE, make_tables


def ask(client: reverb.Client) -> tuple[int, int, int]:
    """Items that a server holds, ever inserted and ever drawn."""
    info = client.server_info(1)[TABLE]
    pace = info.rate_limiter_info
    return info.current_size, pace.insert_stats.completed, pace.sample_stats.completed


class ReverbProxy(RemoteProxy):
    """Proxy with which actors write to a replay in a Reverb server."""

    key_dtype = np.uint64
    failed = (reverb.ReverbError, RuntimeError)

    def __init__(
        self,
        spec: ReplaySpec,
        environment_spec: Any,
        extras_spec: Nest,
        address: str,
        *,
        num_envs: int | None = None,
        while_waiting: Callable[[], None] | None = None,
    ) -> None:
        """Connects to nothing yet.

        Args:
          spec: As the server's tables were made from.
          environment_spec: Likewise.
          extras_spec: Likewise.
          address: Of the server, host:port.
          num_envs: N, of the actor that writes here.
          while_waiting: Called again and again while an adder waits; may raise.
        """
        super().__init__(spec, environment_spec, extras_spec)
        self._arguments = spec, environment_spec, extras_spec, address
        self._num_envs, self._while_waiting = num_envs, while_waiting
        self._client = reverb.Client(address)
        self._adders: list[ReverbAdder] = []

    def adder(self) -> ReverbAdder:
        """Returns a new adder of this replay, usable until the replay is closed."""
        adder = ReverbAdder(
            *self._arguments, num_envs=self._num_envs, while_waiting=self._while_waiting
        )
        self._adders.append(adder)
        return adder

    def save(self) -> Nest:
        """Has the server write a checkpoint, and says into which folder."""
        return {"folder": np.array(self._client.checkpoint())}

    def close(self) -> None:
        """Sends what is complete, for at most a moment."""
        for adder in self._adders:
            adder.close()

    def _ask(self) -> tuple[int, int, int]:
        return ask(self._client)


class ReverbServer(ReverbProxy):
    """The server itself: the items are in its process."""

    def __init__(
        self,
        spec: ReplaySpec,
        environment_spec: Any,
        extras_spec: Nest,
        address: str,
        *,
        num_envs: int | None = None,
        steps_per_sample: int = 1,
        folder: str | None = None,
    ) -> None:
        """Begins to serve.

        Args:
          spec, environment_spec, extras_spec: As `EmbeddedReplay` takes them.
          address: Where to serve, host:port; the host is for clients only.
          num_envs: Of no meaning here.
          steps_per_sample: K, batches that the learner draws at once.
          folder: Of checkpoints; it goes on from the newest. None: a temporary one.

        Raises:
          ValueError: If the pace would come to a halt.
        """
        super().__init__(spec, environment_spec, extras_spec, address)
        self._server = reverb.Server(
            make_tables(spec, environment_spec, extras_spec, steps_per_sample),
            port=int(address.rpartition(":")[2]),
            checkpointer=folder and reverb.checkpointers.DefaultCheckpointer(path=folder),
        )

    def close(self) -> None:
        """Ends the server."""
        self._server.stop()
