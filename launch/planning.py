"""What a schedule makes of an agent's step, and what it costs: `troupe plan`. No accelerator."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax

from .. import environments, partitioning
from ..agents.programs import dispatch
from . import seeds
from .errors import RequestError
from .experiment import Experiment
from .files import sharded

if TYPE_CHECKING:
    from ..environments import EnvironmentSpec


def plan(experiment: Experiment, device: str = "h200") -> partitioning.Plan:
    """Plans the gradient step of an experiment over the mesh of its partition.

    Args:
      experiment: with a partition. Its environment is made once, for its specs.
      device: what the plan predicts for: a preset of the simulator, or a file of a calibration.

    Raises:
      ValueError: if there is no such device, or the schedule cannot be applied.
    """
    simulator = partitioning.Simulator(device)
    return _plan(experiment, _spec_of(experiment), simulator)


def choose(
    experiment: Experiment,
    devices: int,
    device: str = "h200",
    recompute: partitioning.Recompute | None = None,
    memory: float | None = None,
    placement: str | None = None,
) -> partitioning.PlanChoice:
    """Chooses a mesh and a schedule for the gradient step of an experiment.

    Args:
      experiment: without a partition. Its environment is made once, for its specs.
      devices: how many share the step.
      device: as of `plan`.
      recompute: what memory every plan is to keep to by computing activations again.
      memory: the share of a device's memory within which a plan fits; by default all of it.
      placement: "auto", to lay axes and sums of every plan onto the hierarchy of links.

    Raises:
      ValueError: if there is no such device, or the step cannot be shared by so many.
    """
    simulator = partitioning.Simulator(device)
    step, shapes = _step(experiment, _spec_of(experiment))

    def planned(mesh: partitioning.Mesh, tactics: Any) -> partitioning.Plan:
        options: dict[str, Any] = {"simulate": simulator, "recompute": recompute}
        options |= partitioning.laid_out(placement)
        return partitioning.partition(step, mesh, tactics, donate=("state",), **options).plan(
            *shapes
        )

    return partitioning.choose(planned, devices, 1.0 if memory is None else memory)


def _spec_of(experiment: Experiment) -> EnvironmentSpec:
    seed = seeds.derive(experiment.seed, "environment")
    with experiment.make_environment(seed=seed, num_envs=1, evaluation=False) as environment:
        return environments.make_spec(environment)


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
    step, shapes = _step(experiment, spec)
    partitioned = partitioning.partition(
        step,
        experiment.partition.mesh,
        experiment.partition.schedule,
        donate=("state",),
        simulate=simulator,
        recompute=experiment.partition.recompute,
        **({} if simulator is None else partitioning.laid_out(experiment.partition.placement)),
    )
    return partitioned.plan(*shapes)


def _step(experiment: Experiment, spec: EnvironmentSpec) -> tuple[Any, tuple[Any, Any]]:
    """The gradient step of an experiment, and the shapes of its arguments."""
    builder = experiment.builder
    networks = experiment.make_networks(spec)
    policy = builder.make_policy(networks, spec, num_streams=builder.num_envs)
    update = builder.make_update(networks, spec)

    def step(state: Any, sample: Any) -> Any:
        return update.step(state, sample)

    state = jax.eval_shape(lambda: update.init(jax.random.key(0)))
    replay = builder.make_replay_tables(spec, policy, num_envs=builder.num_envs)
    return step, (state, dispatch.on_device(replay.sample_shapes()))
