"""What of a run goes into its checkpoints, and when."""

from __future__ import annotations

import pathlib
import time
from collections.abc import Mapping
from typing import Any

from ...agents.interfaces import Learner
from ...agents.replay import OfflineReplay, Replay
from ..errors import RequestError
from ..experiment import Experiment
from ..files.checkpoints import Checkpoint, Store
from . import finite
from .components import Components

REPLAY_LIMIT = 256 << 20
"""Bytes up to which a replay is kept in checkpoints where nothing else was asked for."""


def keeps_replay(experiment: Experiment, replay: Replay) -> bool:
    """Whether a checkpoint holds the replay, wherever that is."""
    setting = experiment.checkpointing.replay
    if setting == "auto":
        return replay.num_bytes <= REPLAY_LIMIT
    return setting == "always"


class Saver:
    """Writes the checkpoints of one run.

    Attributes:
      store: where they are.
    """

    def __init__(self, experiment: Experiment, store: Store, parts: Components, steps: int):
        self._experiment = experiment
        self.store = store
        self._parts = parts
        self._last = (time.perf_counter(), steps)

    def next_step(self) -> float:
        """Steps of the run's clock at which a checkpoint is due."""
        every = self._experiment.checkpointing.every_steps
        return float("inf") if every is None else self._last[1] + every

    def is_due(self, steps: int) -> bool:
        late = time.perf_counter() - self._last[0] >= self._experiment.checkpointing.every_seconds
        return late or steps >= self.next_step()

    def save(self, counters: Mapping[str, Any]) -> pathlib.Path:
        """Writes a checkpoint; returns its folder.

        Raises:
          CheckpointError: if it could not be written; the earlier ones are as they were.
          DivergedError: if the learner's state is not finite; likewise.
        """
        state = {"learner": self._parts.learner.save()}
        finite.require(state["learner"], self._parts.learner)
        if self._parts.actor is not None:
            state["actor"] = self._parts.actor.save()
            if keeps_replay(self._experiment, self._parts.replay):
                state["replay"] = self._parts.replay.save()
        counters = {**counters, **data_counters(self._parts.replay)}
        path = self.store.save(state, counters, self._experiment.identity())
        self._last = (time.perf_counter(), counters[self._experiment.clock.name])
        return path


def restore_learner(checkpoint: Checkpoint, learner: Learner) -> None:
    """Puts a learner where it was, on whatever devices.

    One that does not say what it saves (`saved_shapes`), such as acme's, is asked to save for it.

    Raises:
      RequestError: if the checkpoint is of another agent.
    """
    shapes = getattr(learner, "saved_shapes", None)
    learner.restore(checkpoint.read("learner", like=learner.save() if shapes is None else shapes))


def resume_data(replay: Replay, learner: Any) -> None:
    """Has data go on where a learner that was restored had come to."""
    if isinstance(replay, OfflineReplay):
        replay.seek(learner.steps)


def require_same_data(checkpoint: Checkpoint, replay: Replay) -> None:
    """Raises RequestError where a run would go on with other data than it began with."""
    if isinstance(replay, OfflineReplay):
        before = checkpoint.counters.get("data")
        if before != replay.fingerprint:
            raise RequestError(
                f"{checkpoint.path} was written by a run that learned from other data ({before}, "
                f"and here {replay.fingerprint}: steps and a sum); begin a new run with this."
            )


def data_counters(replay: Replay) -> dict[str, Any]:
    """What a checkpoint says of the data that was learned from."""
    return {"data": replay.fingerprint} if isinstance(replay, OfflineReplay) else {}


def restore(checkpoint: Checkpoint, parts: Components) -> None:
    """Puts the parts where they were.

    Raises:
      RequestError: if the checkpoint is of another agent.
    """
    require_same_data(checkpoint, parts.replay)
    learner, actor = parts.learner, parts.actor
    restore_learner(checkpoint, learner)
    if actor is None:
        resume_data(parts.replay, learner)
        return
    if "actor" in checkpoint.parts:
        actor.restore(checkpoint.read("actor", like=actor.save()))
    elif hasattr(actor, "set_num_actions"):  # It was lost: its schedules go on, at the least.
        actor.set_num_actions(checkpoint.counters["actor_steps"] // parts.environment.num_envs)
    if "replay" in checkpoint.parts:
        parts.replay.restore(checkpoint.read("replay"))
