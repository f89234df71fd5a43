"""The protocol of a replay that lives in a role of its own, whatever serves it."""

from __future__ import annotations

import pathlib
from collections.abc import Callable
from typing import Protocol

from ....agents.replay.interface import ReplayFactory


class ReplayService(Protocol):
    """The one replay of a run: a factory for the proxy that each role has of it.

    Roles give these factories to the builder's `make_replay_tables`, each its own.
    """

    def reads(self, checkpoint: pathlib.Path) -> bool:
        """True if `server` can go on from it: a file of a replay's `save`, or Reverb's folder."""

    def server(self, folder: pathlib.Path, checkpoint: pathlib.Path | None) -> ReplayFactory:
        """For the replay's role: what it makes serves all others until it is closed.

        What it makes raises ValueError where what was saved does not fit.

        Args:
          folder: where its checkpoints are written, each a folder.
          checkpoint: what to go on from, which it `reads`; None: begin empty.
        """

    def reader(self, hosts: int = 1, rank: int = 0) -> ReplayFactory:
        """For the learner, or the one of `rank` of `hosts` processes that share each batch: it
        draws."""

    def writer(self) -> ReplayFactory:
        """For an actor: its adder writes. It waits for the pace, giving signs of life."""

    def checkpoint(self) -> Callable[[], str]:
        """Has all that the replay holds now written into a new folder.

        Returns:
          A function for any thread: it waits until that is written, and names the folder. It
          raises as this method does.

        Raises:
          OSError, RuntimeError: if that could not be.
        """
