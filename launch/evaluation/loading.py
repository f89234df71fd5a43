"""Loads the learned variables of a run from its directory, without its learner or replay."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

import jax

from ...agents.builder import Builder
from ...agents.interfaces import ManagedLearner
from ...agents.learning.learner import saved_like, saved_variables, variable_shapes
from ...agents.snapshots import from_host
from ..errors import RequestError
from ..experiment import Experiment, check_identity
from ..factory import ComponentFactory
from ..files.best import BestPolicy
from ..files.checkpoints import Checkpoint, Store
from ..files.directory import RunDirectory
from ..specification.begun import asked_of

if TYPE_CHECKING:
    from ...environments import EnvironmentSpec

Nest = Any
Which = Literal["newest", "best"]


@dataclasses.dataclass(frozen=True)
class Learned:
    """The learned variables of a run, at one checkpoint."""

    experiment: Experiment
    """Of the run, on one device and without data, which may be gone."""
    which: Which
    checkpoint: Checkpoint
    """The newest, or the best policy with its evaluation as counters."""

    def source(self, spec: EnvironmentSpec, networks: Any) -> Source:
        """Its variables, for whatever acts.

        Raises:
          RequestError: if they are of another agent or config.
        """
        builder = self.experiment.builder
        common = type(builder).make_learner is Builder.make_learner
        if self.which == "best":
            like = variable_shapes(builder.make_update(networks, spec)) if common else {}
            variables = {
                name: self.checkpoint.read(name, like.get(name)) for name in self.checkpoint.parts
            }
            if common:
                variables = from_host(variables, {name: like[name] for name in variables})
        elif common:
            update = builder.make_update(networks, spec)
            variables = saved_variables(update, self.checkpoint.read("learner", saved_like(update)))
        else:
            variables = self._asked_of_its_learner(spec)
        return Source(jax.device_put(variables))

    def _asked_of_its_learner(self, spec: EnvironmentSpec) -> dict[str, Nest]:
        """The variables of a learner of the builder's own: only it knows what it saves."""
        num_envs = self.experiment.builder.num_envs
        factory = ComponentFactory(self.experiment, spec, num_envs)
        replay = factory.replay(num_envs)
        try:
            learner = factory.learner(replay)
            restore_learner(self.checkpoint, learner)
            return {"policy": learner.get_variables(["policy"])[0]}
        finally:
            replay.close()


class Source:
    """Variables that stay as they are."""

    version = 0

    def __init__(self, variables: Mapping[str, Nest]):
        self._variables = variables

    def get_variables(self, names: Sequence[str] = ("policy",)) -> list[Nest]:
        """The named collections."""
        return [self._variables[name] for name in names]


def restore_learner(checkpoint: Checkpoint, learner: ManagedLearner) -> None:
    """Puts a learner where it was, on whatever devices.

    Raises:
      RequestError: if the checkpoint is of another agent.
    """
    learner.restore(checkpoint.read("learner", like=learner.saved_shapes))


def learned(
    run: Any, which: Which, experiment: Experiment | None, warn: Callable[[str], None]
) -> Learned:
    """Finds the learned variables of a run.

    Args:
      run: its directory; it may be running.
      which: "newest", of the newest checkpoint, or "best" by the run's evaluations.
      experiment: the run's; None: as `config.json` says.
      warn: called with a line for every damaged checkpoint.

    Raises:
      RequestError: if there is no such run, or nothing learned yet.
      CheckpointError: if the checkpoint is damaged.
    """
    if which not in ("newest", "best"):
        raise RequestError(f"there is no {which!r} policy of a run; choose newest or best.")
    directory = RunDirectory(run)
    if experiment is None:
        experiment = asked_of(directory).alone()
    else:
        directory.read_config()  # Is it a run?
        experiment = dataclasses.replace(
            experiment,
            partition=None,
            callbacks=(),
            data=None,
            num_actor_steps=experiment.budget,
            num_learner_steps=None,
        )
    if which == "best":
        checkpoint = BestPolicy(directory.best).held()
        missing = "no best policy yet: none of its evaluations has ended"
    else:
        checkpoint = Store(directory.checkpoints).newest(warn, needs=("learner",))
        missing = "no checkpoint yet"
    if checkpoint is None:
        raise RequestError(f"{directory.path} has {missing}.")
    check_identity(checkpoint.identity, experiment.identity(), checkpoint.path)
    return Learned(experiment, which, checkpoint)
