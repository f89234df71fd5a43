"""Every rank but the first of a learner of several processes."""

from __future__ import annotations

import pathlib
import time
from typing import TYPE_CHECKING

from ...evaluation.loading import restore_learner
from ...files.background import Background
from ...files.checkpoints import Store, write_shards
from ...files.frozen import Freezer, nan_at
from ...local.saver import resume_data
from ..gang import protocol
from ..supervision import role
from .learner import make_learner, make_publisher, make_replay, source_of
from .replay_service import ReplayService
from .variable_board import VariableBoard

if TYPE_CHECKING:
    from ....agents.interfaces import ManagedLearner, Nest
    from ....agents.replay.interface import Replay
    from ....agents.variables.publisher import Publisher
    from ...factory import ComponentFactory

_STOP_SECONDS = 3.0


class FollowerRole:
    """Does what rank 0 says, on its own share of every batch."""

    def __init__(
        self,
        factory: ComponentFactory,
        checkpoints: str,
        service: ReplayService | None,
        size: int,
        rank: int,
        board: VariableBoard,
        spreads: bool = False,
    ):
        """Nothing is made yet.

        Args:
          factory: of the learner.
          checkpoints: folder of the run's checkpoints, in which it writes what it holds.
          service: the replay; None: it learns from data.
          size: processes of the learner.
          rank: of this one, from 1.
          board: takes this process's part of the variables, where that is asked for.
          spreads: True if all who read variables spread them over devices.
        """
        self._factory, self._service = factory, service
        self._checkpoints = pathlib.Path(checkpoints)
        self._gang = protocol.Follower(size, rank)
        self._board, self._spreads = board, spreads
        self._publisher: Publisher | None = None
        self._freezer, self._frozen = Freezer(), None
        self._thread: Background[None] = Background("checkpoint")

    def run(self) -> None:
        self._gang.join()
        replay = make_replay(self._factory, self._service, self._gang.size, self._gang.rank)
        try:
            learner, _ = make_learner(self._factory, replay, self._gang.size, lambda line: None)
            if self._spreads:
                gang = self._gang
                self._publisher = make_publisher(self._board, True, gang.rank, gang.size)
            self._follow(learner, replay)
        finally:
            if self._publisher is not None:
                self._publisher.close()
            replay.close()

    def _follow(self, learner: ManagedLearner, replay: Replay) -> None:
        batches = self._factory.builder.steps_per_dispatch
        announced, stop_by = False, float("inf")
        while time.monotonic() < stop_by:
            if role.pause(0.0) and stop_by == float("inf"):
                # Rank 0 is asked to stop too, and says when all leave.
                stop_by = time.monotonic() + _STOP_SECONDS
            self._thread.take()
            if self._publisher is not None and self._publisher.error is not None:
                raise self._publisher.error
            if not announced and replay.can_sample(batches):
                self._gang.announce()
                announced = True
            said = self._gang.listen(0.1 if announced else 0.0)
            if said is None:
                if not announced:
                    replay.wait(0.02)
                continue
            word, detail = said
            if word == protocol.STEP:
                learner.step()
                announced = False
            elif word == protocol.END:
                return
            else:
                self._obey(word, detail, learner, replay)

    def _obey(self, word: str, detail: str, learner: ManagedLearner, replay: Replay) -> None:
        """Does as rank 0 does between steps, and beside them."""
        if word == protocol.GATHER and self._publisher is not None:
            names = learner.variable_names
            variables = source_of(learner, True).get_variables(names)
            self._publisher.offer(dict(zip(names, variables, strict=True)), int(detail))
        elif word == protocol.GATHER:
            learner.assist(learner.variable_names)
        elif word == protocol.CUT:
            self._thread.take(None)
            frozen = self._frozen = self._freezer.freeze({"learner": learner.live_state()})
            self._thread.start(lambda: self._gang.show(frozen["learner"]))
        elif word == protocol.SAVE:
            self._thread.take(None)  # The sums, which rank 0 has.
            frozen = self._frozen
            self._thread.start(lambda: self._write(self._checkpoints / detail, frozen))
        elif word == protocol.FROM:
            checkpoint = Store(self._checkpoints).named(detail)
            restore_learner(checkpoint, learner)
            resume_data(replay, learner)

    def _write(self, folder: pathlib.Path, frozen: Nest) -> None:
        """Writes this process's shards of what was copied, and tells rank 0."""
        try:
            if (path := nan_at(frozen["learner"])) is not None:
                raise ValueError(f"the learner's {path} holds nan")
            write_shards(folder, frozen)
            self._gang.saved()
        except (OSError, ValueError) as error:
            self._gang.saved(error)
