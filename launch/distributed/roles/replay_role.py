"""The replay as a role."""

from __future__ import annotations

import pathlib
from typing import TYPE_CHECKING

from ...files.checkpoints import CheckpointError, Store
from ..supervision import role
from . import rpc
from ...files.replay_files import damage

if TYPE_CHECKING:
    from ...factory import ComponentFactory
    from .replay_service import ReplayService


class ReplayRole:
    """Serves the replay; goes on from that of the newest checkpoint."""

    def __init__(
        self,
        factory: ComponentFactory,
        replay_folder: str,
        checkpoints: str,
        counter: rpc.Remote,
        service: ReplayService,
    ):
        """Nothing is made yet.

        Args:
          factory: of the replay.
          replay_folder: where it writes its checkpoints.
          checkpoints: folder of the run's checkpoints, which name those of the replay.
          counter: is told what the user should know.
          service: the replay.
        """
        self._factory = factory
        self._folder = pathlib.Path(replay_folder)
        self._store = Store(checkpoints)
        self._counter, self._service = counter, service

    def run(self) -> None:
        server = self._service.server(self._folder, self._checkpoint())
        replay = self._factory.replay(self._factory.num_streams, server)
        while not role.pause(0.5):
            pass
        replay.close()

    def _checkpoint(self) -> str | None:
        """Name of the folder to go on from, where the newest checkpoint has one that is whole."""
        try:
            checkpoint = self._store.newest(lambda damage: None, needs=("learner",))
        except CheckpointError:
            return None  # The learner says so, and ends the run.
        kept = checkpoint.counters.get("replay") if checkpoint else None
        if not kept:
            return None
        wrong = damage(self._folder / kept["folder"], kept["files"])
        if wrong is None:
            return kept["folder"]
        rpc.insist(self._counter.note, f"warning: {wrong}; the replay starts empty")
        return None
