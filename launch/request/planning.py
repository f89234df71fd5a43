"""What a schedule makes of an agent's step, and what it costs: `troupe plan`. No accelerator."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax

from ... import environments, partitioning
from ...agents.learning import dispatch
from .. import seeds
from ..errors import RequestError
from ..experiment import Experiment
from ..files import sharded

if TYPE_CHECKING:
    from ...environments import EnvironmentSpec


def plan(experiment: Experiment, device: str = "h200") -> partitioning.Plan:
    """Plans the gradient step of an experiment over the mesh of its partition.

    Args:
      experiment: with a partition. Its environment is made once, for its specs.
      device: what the plan predicts for: a preset of the simulator, or a file of a calibration.

    Raises:
      ValueError: if there is no such device, or the schedule cannot be applied.
    """
    simulator = partitioning.Simulator(device)
    seed = seeds.derive(experiment.seed, "environment")
    with experiment.make_environment(seed=seed, num_envs=1, evaluation=False) as environment:
        spec = environments.make_spec(environment)
    return _plan(experiment, spec, simulator)


def check(experiment: Experiment, spec: EnvironmentSpec) -> None:
    """Plans the step of an experiment, where it has a partition, to see that it can be.

    Raises:
      RequestError: if it cannot: the mesh does not divide the batch, say; or if the library that
        saves its state is missing.
    """
    if experiment.partition is None:
        return
    if experiment.partition.mesh.size > 1:
        sharded.require()  # Now, and not when the first checkpoint is due.
    try:
        _plan(experiment, spec, simulator=None)
    except ValueError as error:
        batch = experiment.builder.make_replay_spec(spec).batch_size
        raise RequestError(
            f"a batch of {batch} cannot be learned from on the mesh {experiment.partition.mesh}: "
            f"{error}."
        ) from error


def _plan(experiment: Experiment, spec: EnvironmentSpec, simulator: Any) -> partitioning.Plan:
    assert experiment.partition is not None
    builder = experiment.builder
    networks = experiment.make_networks(spec)
    policy = builder.make_policy(networks, spec, num_streams=builder.num_envs)
    update = builder.make_update(networks, spec)

    def step(state: Any, sample: Any) -> Any:
        return update.step(state, sample)

    partitioned = partitioning.partition(
        step,
        experiment.partition.mesh,
        experiment.partition.schedule,
        donate=("state",),
        simulate=simulator,
        recompute=experiment.partition.recompute,
    )
    state = jax.eval_shape(lambda: update.init(jax.random.key(0)))
    replay = builder.make_replay_tables(spec, policy, num_envs=builder.num_envs)
    return partitioned.plan(state, dispatch.on_device(replay.sample_shapes()))
