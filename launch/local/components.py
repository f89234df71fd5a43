"""The parts of a run in one process, taken from the builder."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from ... import environments
from .. import seeds
from ..evaluation.evaluator import Evaluator
from ..experiment import Experiment
from ..factory import ComponentFactory
from ..validation import updates

if TYPE_CHECKING:
    from ...agents.replay.interface import Replay
    from ...environments import EnvironmentSpec, Vector


@dataclasses.dataclass(frozen=True)
class Components:
    """What one process holds of an experiment. The environment is closed by whoever made it."""

    spec: EnvironmentSpec
    environment: Vector
    replay: Replay
    learner: Any
    actor: Any
    """None where nobody acts."""
    evaluator: Evaluator

    def __enter__(self) -> Components:
        return self

    def __exit__(self, *exception: object) -> None:
        self.replay.close()


def make_environment(experiment: Experiment, resumed: int) -> Vector:
    """The environments of training.

    Args:
      experiment: what is run.
      resumed: how often it was resumed: it then goes on with episodes not seen before.
    """
    seed = seeds.derive(experiment.seed, "environment", 0, resumed)
    num_envs = experiment.builder.num_envs
    return experiment.make_environment(seed=seed, num_envs=num_envs, evaluation=False)


def make(experiment: Experiment, environment: Vector, *, check: bool = False) -> Components:
    """All parts around an environment.

    Args:
      experiment: what is run.
      environment: of training.
      check: whether to trace the update, so that a mistake in it is found now and not with the
        first batch.

    Raises:
      ValueError: if the agent cannot drive the environment, or its config or its update cannot be.
    """
    num_envs = environment.num_envs
    spec = environments.make_spec(environment)
    factory = ComponentFactory(experiment, spec, num_envs)
    replay = factory.replay(num_envs) if experiment.acts else factory.offline_replay()
    if check:
        updates.check(factory, factory.networks, replay.sample_shapes())
    check_partition(experiment, spec)
    learner = factory.learner(replay)
    actor = None
    if experiment.acts:
        actor = factory.actor(factory.key("actor"), learner, replay, num_envs=num_envs)
    evaluator = Evaluator(experiment, spec, factory.networks, learner)
    return Components(spec, environment, replay, learner, actor, evaluator)


def check_partition(experiment: Experiment, spec: EnvironmentSpec) -> None:
    """Raises RequestError where the learner's step cannot be spread as the experiment says."""
    if experiment.partition is not None:
        from .. import planning  # Only who has a mesh pays for it.

        planning.check(experiment, spec)
