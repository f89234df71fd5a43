"""The replay that a run's newest checkpoint holds, as data."""

from __future__ import annotations

import pathlib
from typing import TYPE_CHECKING, Any

from ... import environments
from .. import seeds
from ..errors import RequestError
from ..files.checkpoints import Store
from ..files.directory import RunDirectory
from ..specification.begun import asked_of

if TYPE_CHECKING:
    from ...agents.replay.offline.dataset import Dataset


def read(path: pathlib.Path) -> Dataset:
    """The episodes in the checkpointed replay of a run in one process.

    Raises:
      RequestError: if its checkpoint has none.
      CheckpointError: if all checkpoints are damaged.
      ValueError: if what is in it cannot be learned from.
    """
    from ...agents.replay.offline import history

    directory = RunDirectory(path)
    experiment = asked_of(directory).alone()
    checkpoint = Store(directory.checkpoints).newest(lambda damage: None)
    if checkpoint is None:
        raise RequestError(f"{path} has no checkpoint yet, so there is no data in it.")
    if "replay" not in checkpoint.parts:
        kept = "of another process" if checkpoint.counters.get("replay") else "not kept"
        raise RequestError(
            f"the replay in {checkpoint.path} is {kept}: train in one process with "
            f"--checkpoint-replay always, or record the policy with `troupe record {path}`."
        )
    seed = seeds.derive(experiment.seed, "environment")
    with experiment.make_environment(seed=seed, num_envs=1, evaluation=False) as environment:
        spec = environments.make_spec(environment)
    state: dict[str, Any] = checkpoint.read("replay")
    item = experiment.builder.make_replay_spec(spec).item
    return history.of_replay(state, item, spec.observations, spec.actions, str(path))
