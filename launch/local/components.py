"""The parts of a run in one process, taken from the builder."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import jax

from ... import environments
from ...agents.variables.client import MeshVariables
from .. import devices, seeds
from ..evaluation import opponents
from ..evaluation.evaluator import Evaluator
from ..experiment import Experiment
from ..factory import ComponentFactory, check_streams
from ..validation import updates

if TYPE_CHECKING:
    from ...agents.interfaces import ManagedLearner
    from ...agents.replay.interface import Replay
    from ...environments import EnvironmentSpec, Vector


@dataclasses.dataclass(frozen=True)
class Components:
    """The parts of an experiment in one process. The environment is closed by whoever made it."""

    spec: EnvironmentSpec
    environment: Vector
    replay: Replay
    learner: ManagedLearner
    actor: Any
    """None where nobody acts."""
    evaluator: Evaluator
    devices: devices.ChosenDevices

    def __enter__(self) -> Components:
        return self

    def __exit__(self, *exception: object) -> None:
        self.replay.close()


def make_environment(
    experiment: Experiment, resumed: int, warn: Callable[[str], None] = lambda line: None
) -> Vector:
    """The environments of training.

    Args:
      experiment: what is run.
      resumed: how often it was resumed: it then goes on with episodes not seen before.
      warn: called with a line for every damaged checkpoint of a run that plays against it.

    Raises:
      RequestError: if it has several agents, and some of them no stream.
    """
    seed = seeds.derive(experiment.seed, "environment", 0, resumed)
    num_envs = experiment.builder.num_envs
    made = experiment.make_environment(seed=seed, num_envs=num_envs, evaluation=False)
    try:
        check_streams(experiment, made.num_agents)
        opponents.face_in_training(made, warn)
    except ValueError:
        made.close()
        raise
    return made


def make(experiment: Experiment, environment: Vector, *, check: bool = False) -> Components:
    """All parts around an environment.

    Args:
      experiment: what is run.
      environment: of training.
      check: trace the update, so that a mistake in it is found now and not with the
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
    samples = replay.sample_shapes(experiment.builder.steps_per_dispatch)
    chosen = devices.choose(factory, samples, replay.spec if experiment.acts else None)
    learner = _make_learner(factory, replay, chosen.learner)
    # A policy with a mesh of its own takes the parameters as they lie on the learner's.
    on_mesh = experiment.actor_device == devices.MESH or (
        experiment.sampler_partition is not None and experiment.partition is not None
    )
    source = MeshVariables(learner) if on_mesh else learner
    actor = None
    if experiment.acts:
        key = factory.key("actor")
        actor = factory.actor(key, source, replay, num_envs=num_envs, device=chosen.actor)
        if opponents.self_play_of(environment) is not None:
            opponents.oppose(environment, factory.policy, learner.get_variables(("policy",))[0])
    evaluator = Evaluator(experiment, spec, factory.networks, source, chosen.actor)
    return Components(spec, environment, replay, learner, actor, evaluator, chosen)


def _make_learner(
    factory: ComponentFactory, replay: Replay, device: jax.Device | None
) -> ManagedLearner:
    """The learner, whose step is planned here where it has a partition."""
    experiment = factory.experiment
    if experiment.partition is None:
        return factory.learner(replay, device=device)
    from .. import planning  # Only who has a mesh pays for it.

    planning.require_sharded(experiment.partition)
    with planning.refused(experiment, factory.spec):
        return factory.learner(replay)
