"""The replay as a role."""

from __future__ import annotations

import pathlib
from typing import TYPE_CHECKING

from ...files.checkpoints import CheckpointError, Store
from ...files.replay_files import find
from ..supervision import role
from . import rpc

if TYPE_CHECKING:
    from ....agents.replay.interface import Replay
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
        replay = self._make(self._checkpoint())
        while not role.pause(0.5):
            pass
        replay.close()

    def _make(self, checkpoint: pathlib.Path | None) -> Replay:
        """The replay that all others are served; empty where it cannot go on from `checkpoint`."""
        try:
            server = self._service.server(self._folder, checkpoint)
            return self._factory.replay(self._factory.num_streams, server)
        except ValueError as error:
            if checkpoint is None:
                raise
            self._note(f"warning: {checkpoint}: {error} The replay begins empty")
            return self._make(None)

    def _checkpoint(self) -> pathlib.Path | None:
        """Finds what the replay goes on from, if the newest checkpoint has one that is whole."""
        try:
            checkpoint = self._store.newest(
                lambda damage: None, needs=("learner",), spare=("replay",)
            )
        except CheckpointError:
            return None  # The learner says so, and ends the run.
        if checkpoint is None:
            return None
        found = find(checkpoint, self._folder, self._note)
        if found is not None and not self._service.reads(found):
            self._note(f"warning: {found} is of another kind of replay; the replay begins empty")
            return None
        return found

    def _note(self, line: str) -> None:
        rpc.insist(self._counter.note, line)
