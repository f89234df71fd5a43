"""Plans the gradient step of an experiment: for `troupe plan`, and before a launch."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from .. import environments
from ..agents.programs import dispatch, planning, runtime
from ..agents.programs.placement import Partition
from . import seeds
from .errors import RequestError
from .experiment import Experiment
from .files import sharded

if TYPE_CHECKING:
    from .. import partitioning
    from ..environments import EnvironmentSpec


def plan(experiment: Experiment, spec: EnvironmentSpec | None = None) -> partitioning.Plan:
    """Plans the gradient step of an experiment over the mesh of its partition.

    Args:
      experiment: with a partition.
      spec: of one environment; None: the environment is made once for it.

    Raises:
      ValueError: if there is no such device, or the schedule cannot be applied.
    """
    return _planned(experiment, spec or spec_of(experiment), runtime.here()).plan


def choose(
    experiment: Experiment,
    devices: int,
    partition: Partition,
    memory: float | None = None,
) -> partitioning.PlanChoice:
    """Chooses a mesh and a schedule for the gradient step of an experiment.

    Args:
      experiment: without a partition. Its environment is made once, for its specs.
      devices: how many share the step.
      partition: what every plan has besides its mesh and schedule.
      memory: the share of a device's memory within which a plan fits; by default all of it.

    Raises:
      ValueError: if there is no such device, or the step cannot be shared by so many.
    """
    from .. import partitioning

    update, sample = _step(experiment, spec_of(experiment))
    here = runtime.here()

    def planned(mesh: partitioning.Mesh, tactics: Any) -> partitioning.Plan:
        placed = dataclasses.replace(partition, mesh=mesh, schedule=tactics)
        return planning.plan_update(update, placed, sample, here).plan

    return partitioning.choose(planned, devices, 1.0 if memory is None else memory)


def decided(experiment: Experiment, spec: EnvironmentSpec, devices: runtime.Devices) -> Experiment:
    """Plans the step of an experiment for the processes that will run it.

    Args:
      experiment: with a partition or without.
      spec: of one environment.
      devices: those of the learner.

    Returns:
      The experiment, whose partition has the decisions of that plan: whoever makes the learner
      uses them and searches nothing.

    Raises:
      RequestError: if it cannot be planned, a device has too little memory for it, or the library
        that saves its state is missing.
    """
    if experiment.partition is None:
        return experiment
    require_sharded(experiment.partition)
    with refused(experiment, spec):
        update, sample = _step(experiment, spec)
        planned = planning.plan_update(update, experiment.partition, sample, devices)
        planning.require_memory(planned, update, experiment.partition, sample, devices)
        decisions = planned.plan.decisions
    partition = dataclasses.replace(experiment.partition, decisions=decisions)
    return dataclasses.replace(experiment, partition=partition)


def require_sharded(partition: Partition) -> None:
    """Raises RequestError where what saves a partitioned state is not installed.

    Asked for when a run begins, and not when its first checkpoint is due.
    """
    if partition.mesh.size > 1:
        sharded.require()


@contextlib.contextmanager
def refused(experiment: Experiment, spec: EnvironmentSpec) -> Iterator[None]:
    """Raises RequestError in place of a ValueError about the step's plan."""
    try:
        yield
    except RequestError:
        raise
    except ValueError as error:
        batch = experiment.builder.make_replay_spec(spec).batch_size
        mesh = experiment.partition.mesh if experiment.partition is not None else None
        raise RequestError(
            f"a step of a batch of {batch} cannot be planned on the mesh {mesh}: {error}."
        ) from error


def spec_of(experiment: Experiment) -> EnvironmentSpec:
    """Makes the environment of an experiment once, and returns its specs."""
    seed = seeds.derive(experiment.seed, "environment")
    with experiment.make_environment(seed=seed, num_envs=1, evaluation=False) as environment:
        return environments.make_spec(environment)


def _planned(
    experiment: Experiment, spec: EnvironmentSpec, devices: runtime.Devices
) -> planning.PlannedStep:
    assert experiment.partition is not None
    update, sample = _step(experiment, spec)
    return planning.plan_update(update, experiment.partition, sample, devices)


def _step(experiment: Experiment, spec: EnvironmentSpec) -> tuple[Any, Any]:
    """The update of an experiment, and the shapes of its global batch [B, ...]."""
    builder = experiment.builder
    networks = experiment.make_networks(spec)
    policy = builder.make_policy(networks, spec, num_streams=builder.num_envs)
    replay = builder.make_replay_tables(spec, policy, num_envs=builder.num_envs)
    return builder.make_update(networks, spec), dispatch.on_device(replay.sample_shapes())
