"""What roles may expect of a replay that lives in a role of its own, whatever serves it."""

from __future__ import annotations

import pathlib
from typing import Protocol

from ....agents.replay.interface import ReplayFactory


class ReplayService(Protocol):
    """The one replay of a run: a factory for the proxy that each role has of it.

    Roles give these factories to the builder's `make_replay_tables`, each its own.
    """

    def server(self, folder: pathlib.Path, checkpoint: str | None) -> ReplayFactory:
        """For the replay's role: what it makes serves all others until it is closed.

        Args:
          folder: where its checkpoints are written, each a folder.
          checkpoint: name of the one in it to go on from; None: begin empty.
        """

    def reader(self, hosts: int = 1) -> ReplayFactory:
        """For the learner, or one of `hosts` processes that share each batch: it draws."""

    def writer(self) -> ReplayFactory:
        """For an actor: its adder writes. It waits for the pace, giving signs of life."""

    def checkpoint(self) -> str:
        """Has all that the replay holds written into a new folder, and names it.

        Raises:
          OSError, RuntimeError: if that could not be.
        """
