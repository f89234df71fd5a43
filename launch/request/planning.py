"""What a schedule makes of an agent's step, and what it costs: `troupe plan`. No accelerator."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import jax
import numpy as np
import tree

from ... import environments, partitioning
from ...agents.replay import EmbeddedReplay
from .. import seeds
from ..errors import RequestError
from ..experiment import Experiment

if TYPE_CHECKING:
    from ...agents.builder import Builder
    from ...agents.interfaces import ActorCore
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
    with experiment.environment_factory(seed=seed, num_envs=1, evaluation=False) as environment:
        spec = environments.make_spec(environment)
    return _plan(experiment, spec, simulator)


def check(experiment: Experiment, spec: EnvironmentSpec) -> None:
    """Plans the step of an experiment, where it has a partition, to see that it can be.

    Raises:
      RequestError: if it cannot: the mesh does not divide the batch, say.
    """
    if experiment.partition is None:
        return
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
    )
    state = jax.eval_shape(lambda: update.init(jax.random.key(0)))
    return partitioned.plan(state, make_batch(builder, policy, spec))


def make_batch(builder: Builder, policy: ActorCore, spec: EnvironmentSpec) -> Any:
    """A batch of the shapes that the learner gets, of what a fake environment gives.

    The replay itself makes it, so that there is one description of what an item is.
    """
    num_envs = builder.num_envs
    extras_spec = builder.make_extras_spec(policy)
    wanted = builder.make_replay_spec(spec)
    replay_spec = dataclasses.replace(
        wanted, min_size=1, max_size=wanted.batch_size, samples_per_insert=None
    )
    replay = EmbeddedReplay(replay_spec, spec, extras_spec, num_envs=num_envs)
    fakes = environments.Vector(
        [environments.fakes.from_spec(spec, seed=i) for i in range(num_envs)]
    )
    action = tree.map_structure(
        lambda one: np.stack([one.generate_value()] * num_envs), spec.actions
    )
    extras = jax.tree.map(lambda one: np.zeros((num_envs, *one.shape), one.dtype), extras_spec)
    adder = replay.adder()
    adder.add_first(fakes.reset())
    while not replay.can_sample():
        adder.add(action, fakes.step(action), extras)
    return replay.sample()
