"""The parts of a run in one process, taken from the builder."""

from __future__ import annotations

import dataclasses
import inspect
from typing import TYPE_CHECKING, Any

import jax

from ... import environments
from .. import seeds
from ..errors import RequestError
from ..experiment import Experiment
from ..judging.evaluation import Evaluator

if TYPE_CHECKING:
    from ...agents.builder import Builder
    from ...environments import EnvironmentSpec, Vector


@dataclasses.dataclass(frozen=True)
class Parts:
    """What one process holds of an experiment. The environment is closed by whoever made it."""

    spec: EnvironmentSpec
    environment: Vector
    replay: Any
    learner: Any
    actor: Any
    evaluator: Evaluator

    def __enter__(self) -> Parts:
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
    return experiment.environment_factory(seed=seed, num_envs=num_envs, evaluation=False)


def make(experiment: Experiment, environment: Vector) -> Parts:
    """All parts around an environment.

    Raises:
      ValueError: if the agent cannot drive the environment, or its config cannot be.
    """
    builder, num_envs = experiment.builder, environment.num_envs
    spec = environments.make_spec(environment)
    networks = experiment.make_networks(spec)
    policy = builder.make_policy(networks, spec, num_streams=num_envs)
    replay = builder.make_replay_tables(
        spec, policy, num_envs=num_envs, seed=seeds.derive(experiment.seed, "replay")
    )
    check_partition(experiment, spec)
    learner = builder.make_learner(
        _key(experiment, "learner"),
        networks,
        spec,
        builder.make_dataset_iterator(replay),
        replay,
        **partition_argument(experiment),
    )
    actor = builder.make_actor(
        _key(experiment, "actor"),
        policy,
        spec,
        learner,
        builder.make_adder(replay),
        num_envs=num_envs,
    )
    evaluator = Evaluator(experiment, spec, networks, learner)
    return Parts(spec, environment, replay, learner, actor, evaluator)


def _key(experiment: Experiment, role: str) -> jax.Array:
    return jax.random.key(seeds.derive(experiment.seed, role))


def check_partition(experiment: Experiment, spec: EnvironmentSpec) -> None:
    """Raises RequestError where the learner's step cannot be spread as the experiment says."""
    if experiment.partition is not None:
        from ..request import planning  # Only who has a mesh pays for it.

        planning.check(experiment, spec)


def partition_argument(experiment: Experiment) -> dict[str, Any]:
    """The argument by which a builder takes a partition, where there is one."""
    if experiment.partition is None:
        return {}
    check_partitionable(experiment.builder)
    return {"partition": experiment.partition}


def check_partitionable(builder: Builder) -> None:
    """Raises RequestError where an agent's learner takes no partition."""
    parameters = inspect.signature(builder.make_learner).parameters.values()
    if not any(one.name == "partition" or one.kind is one.VAR_KEYWORD for one in parameters):
        raise RequestError(
            f"the agent {builder.name} cannot be partitioned: its builder's "
            "make_learner has no argument `partition`."
        )
