"""The parts of a run in one process that its checkpoints hold, and when they are written."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Mapping
from typing import Any

from ...agents.interfaces import ManagedLearner
from ...agents.replay import OfflineReplay, Replay
from ..errors import RequestError
from ..evaluation.loading import restore_learner
from ..experiment import Experiment
from ..files import npz, replay_files
from ..files.checkpoints import Checkpoint, Store
from ..files.writer import CheckpointWriter, Written
from . import finite
from .components import Components

REPLAY_LIMIT = 256 << 20
"""Bytes up to which a replay is kept in checkpoints where nothing else was asked for."""


def keeps_replay(experiment: Experiment, replay: Replay) -> bool:
    """True if a checkpoint holds the replay, wherever that is."""
    setting = experiment.checkpointing.replay
    if setting == "auto":
        return replay.num_bytes <= REPLAY_LIMIT
    return setting == "always"


def part_of(component: Any, name: str) -> str:
    """Returns the name of a component's part of a checkpoint: one of its own, where it has one."""
    return getattr(component, "part", name)


class Saver:
    """Writes the checkpoints of one run, beside it; see `CheckpointWriter`.

    Attributes:
      store: where they are.
    """

    def __init__(self, experiment: Experiment, store: Store, parts: Components, steps: int):
        self._experiment = experiment
        self.store = store
        self._parts = parts
        self._last = (time.perf_counter(), steps)
        self._writer = CheckpointWriter(store)

    def next_step(self) -> float:
        """Steps of the run's clock at which a checkpoint is due."""
        every = self._experiment.checkpointing.every_steps
        return float("inf") if every is None else self._last[1] + every

    def is_due(self, steps: int) -> bool:
        """True if a checkpoint is to begin now.

        One that is due by its steps waits for the one before. By the clock none is due while
        another is being written.
        """
        late = time.perf_counter() - self._last[0] >= self._experiment.checkpointing.every_seconds
        return steps >= self.next_step() or (late and not self._writer.busy)

    def save(self, counters: Mapping[str, Any]) -> Written | None:
        """Begins a checkpoint of this moment.

        Returns:
          The one before, where it was still being written and is now complete.

        Raises:
          CheckpointError: if the one before could not be written; those before it are as they were.
          DivergedError: if the learner's state in the one before was not finite; likewise.
        """
        before = self._writer.take(None)
        learner, replay = self._parts.learner, self._parts.replay
        parts = {"learner": learner.live_state()}
        as_it_is: dict[str, Any] = {}
        if self._parts.actor is not None:
            parts[part_of(self._parts.actor, "actor")] = self._parts.actor.save()
            if keeps_replay(self._experiment, replay):
                # Nobody is to need the memory of a large replay twice: the run waits for it.
                small = replay.num_bytes <= REPLAY_LIMIT
                (parts if small else as_it_is)[part_of(replay, "replay")] = replay.save()
        parts = self._writer.freeze(parts)
        self._writer.start(
            {**parts, **as_it_is},
            {**counters, **data_counters(replay)},
            self._experiment.identity(),
            check=functools.partial(finite.require, parts["learner"], learner.steps),
        )
        if as_it_is:
            self._writer.wait()
        self._last = (time.perf_counter(), counters[self._experiment.clock.name])
        return before

    def take(self, seconds: float | None = 0.0) -> Written | None:
        """A checkpoint that is complete within so many seconds (None: whenever that is), once.

        Raises:
          CheckpointError, DivergedError: as of `save`.
        """
        return self._writer.take(seconds)

    def wait(self) -> None:
        """Waits until nothing is being written, whatever becomes of it."""
        self._writer.wait()


def resume_data(replay: Replay, learner: ManagedLearner) -> None:
    """Has data go on where a learner that was restored had come to."""
    if isinstance(replay, OfflineReplay):
        replay.seek(learner.steps)


def require_same_data(checkpoint: Checkpoint, replay: Replay) -> None:
    """Raises RequestError where a run would go on with other data than it began with."""
    if isinstance(replay, OfflineReplay):
        before = checkpoint.counters.get("data")
        begun = checkpoint.counters["learner_steps"] > 0  # Weights of another run are of no data.
        if begun and before != replay.fingerprint:
            raise RequestError(
                f"{checkpoint.path} was written by a run that learned from other data ({before}, "
                f"and here {replay.fingerprint}: steps and a sum); begin a new run with this."
            )


def data_counters(replay: Replay) -> dict[str, Any]:
    """The counters that tell the data of a run from other data."""
    return {"data": replay.fingerprint} if isinstance(replay, OfflineReplay) else {}


def restore(checkpoint: Checkpoint, parts: Components, warn: Callable[[str], None]) -> None:
    """Puts the parts where they were.

    Args:
      checkpoint: of a run in whatever launch.
      parts: of this one.
      warn: told in a line where the replay of another launch cannot be gone on with.

    Raises:
      RequestError: if the checkpoint is of another agent.
    """
    require_same_data(checkpoint, parts.replay)
    learner, actor = parts.learner, parts.actor
    restore_learner(checkpoint, learner)
    if actor is None:
        resume_data(parts.replay, learner)
        return
    if (part := part_of(actor, "actor")) in checkpoint.parts:
        actor.restore(checkpoint.read(part, like=actor.save()))
    elif hasattr(actor, "set_num_actions"):  # It was lost: its schedules go on, at the least.
        actor.set_num_actions(checkpoint.counters["actor_steps"] // parts.environment.num_envs)
    if (part := part_of(parts.replay, "replay")) in checkpoint.parts:
        like = None if part == "replay" else parts.replay.save()
        parts.replay.restore(checkpoint.read(part, like=like))
    elif part == "replay":
        _restore_foreign(checkpoint, parts.replay, warn)


def _restore_foreign(checkpoint: Checkpoint, replay: Replay, warn: Callable[[str], None]) -> None:
    """Goes on with the replay that another process kept beside a checkpoint, if that can be."""
    found = replay_files.find(checkpoint, checkpoint.path.parent.parent / "replay", warn)
    if found is None:
        return
    if found.is_dir():
        warn(f"warning: {found} is of another kind of replay; the replay begins empty")
        return
    try:
        with open(found, "rb") as file:
            replay.restore(npz.read(file))
    except ValueError as error:
        warn(f"warning: {found}: {error} The replay begins empty")
