"""Plans the gradient step of an experiment: for `troupe plan`, and before a launch."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import jax

from .. import environments
from ..agents import action_spaces
from ..agents.networks.core import dummy
from ..agents.programs import dispatch, planning, runtime
from ..agents.programs.placement import Partition
from ..agents.programs.policy import PolicyProgram
from . import seeds
from .errors import RequestError
from .experiment import Experiment
from .files import sharded

if TYPE_CHECKING:
    from .. import partitioning
    from ..agents.interfaces import Update
    from ..environments import EnvironmentSpec
    from ..partitioning.transfer import ArrayLayout, TransferPlan


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
    spec: EnvironmentSpec | None = None,
) -> partitioning.PlanChoice:
    """Chooses a mesh and a schedule for the gradient step of an experiment.

    Args:
      experiment: without a partition.
      devices: how many share the step.
      partition: what every plan has besides its mesh and schedule.
      memory: the share of a device's memory within which a plan fits; by default all of it.
      spec: as of `plan`.

    Raises:
      ValueError: if there is no such device, or the step cannot be shared by so many.
    """
    from .. import partitioning

    step = unpartitioned(experiment, spec or spec_of(experiment), devices, partition)
    return partitioning.choose(step.on, devices, 1.0 if memory is None else memory)


def unpartitioned(
    experiment: Experiment, spec: EnvironmentSpec, devices: int, partition: Partition
) -> planning.PlannedStep:
    """The gradient step of an experiment without a schedule, to be planned on meshes.

    Args:
      experiment: its partition is not looked at.
      spec: of one environment.
      devices: of each mesh.
      partition: as of `choose`.

    Raises:
      ValueError: if there is no such device, or no mesh of so many.
    """
    update, sample = _step(experiment, spec)
    return planning.plan_update(update, _alone(devices, partition), sample, runtime.here())


def unpartitioned_policy(
    experiment: Experiment, spec: EnvironmentSpec, devices: int, partition: Partition
) -> planning.PlannedStep:
    """Likewise the policy of all its streams; arguments as of `unpartitioned`."""
    return _policy(experiment, spec, _alone(devices, partition))


def _alone(devices: int, partition: Partition) -> Partition:
    """A partition whose devices share nothing."""
    from ..partitioning.choose import meshes

    return dataclasses.replace(partition, mesh=next(meshes(devices)), schedule=())


def _policy(
    experiment: Experiment, spec: EnvironmentSpec, partition: Partition
) -> planning.PlannedStep:
    builder = experiment.builder
    networks = experiment.make_networks(spec)
    update = builder.make_update(networks, spec)
    params = jax.eval_shape(lambda: update.variables(update.init(jax.random.key(0)))["policy"])
    policy = builder.make_policy(networks, spec, num_streams=builder.num_envs)
    program = PolicyProgram(policy, builder.num_envs, device=partition)
    return program.plan(params, dummy(spec.observations, builder.num_envs), runtime.here())


@dataclasses.dataclass(frozen=True)
class StepPhases:
    """Predicted seconds of a gradient step of an agent that answers prompts, by phase.

    Attributes:
      groups: groups of answers that a step learns from.
      tokens: of their answers and of the prompt of each.
      answering: until these are written, each as long as an answer may be.
      syncing: until the parameters are where the policy is, on devices of its own.
      learning: of the gradient step.
    """

    groups: int
    tokens: int
    answering: float
    syncing: float
    learning: float

    @property
    def in_turn(self) -> float:
        """Seconds of a step if each phase waits for the one before."""
        return self.answering + self.syncing + self.learning

    @property
    def one_off(self) -> float:
        """Seconds of a step if answers are learned from while the next ones are written."""
        return max(self.answering + self.syncing, self.learning)

    def __str__(self) -> str:
        return (
            f"a gradient step on {self.groups} groups of answers of full length: "
            f"{self.answering:.3g} s answering, {self.syncing:.3g} s parameters on their way, "
            f"{self.learning:.3g} s learning; {self.in_turn:.3g} s in turn, {self.one_off:.3g} s "
            "if they overlap"
        )


@dataclasses.dataclass(frozen=True)
class PlannedSampler:
    """A policy on a mesh of its own, and the way of the learner's parameters to it.

    Attributes:
      policy: the plan of a step of all environments' streams.
      beside: of the parameters, to devices besides the learner's.
      shared: of the parameters, to the first of the learner's own devices.
      computed: paths of parameters that no array of the learner's state is; as if every device of
        the learner had them.
      phases: of a policy that answers prompts; of others None, whose pace is the environment's.
    """

    policy: partitioning.Plan
    beside: TransferPlan
    shared: TransferPlan
    computed: tuple[str, ...]
    phases: StepPhases | None = None

    def __str__(self) -> str:
        from ..partitioning.simulator.simulate import amount

        cost = self.policy.steps[-1].simulation
        lines = [
            f"the policy over {self.policy.mesh}: {cost.shown_seconds(' s')} a step, peak "
            f"{amount(cost.peak_memory_bytes, 'B', 1024)} of each device",
            f"its parameters, to devices of its own: {self.beside}",
            f"its parameters, to the learner's devices: {self.shared.summary}",
        ]
        if self.computed:
            lines.append(f"computed from the learner's state: {', '.join(self.computed)}")
        if self.phases is not None:
            lines.append(str(self.phases))
        return "\n".join(lines)

    def to_json(self) -> dict[str, Any]:
        """The summary of the policy's step, and both transfers."""
        return {
            "policy": self.policy.summary(),
            "beside": self.beside.to_json(),
            "shared": self.shared.to_json(),
            "computed": self.computed,
            "phases": None if self.phases is None else dataclasses.asdict(self.phases),
        }


def plan_sampler(
    experiment: Experiment, step: partitioning.Plan, spec: EnvironmentSpec | None = None
) -> PlannedSampler:
    """Plans the policy of an experiment over its own mesh, and the way of its parameters there.

    Args:
      experiment: with a partition and a sampler's.
      step: the learner's, as `plan` gives it.
      spec: as of `plan`.

    Raises:
      ValueError: if the schedule of the sampler cannot be applied.
    """
    assert experiment.partition is not None
    assert experiment.sampler_partition is not None
    spec = spec or spec_of(experiment)
    # Decisions say for which device the learner's step was planned.
    device = experiment.partition.device or step.steps[-1].simulation.device
    partition = dataclasses.replace(experiment.sampler_partition, device=device)
    return join(experiment, spec, step, _policy(experiment, spec, partition).plan, device)


def join(
    experiment: Experiment,
    spec: EnvironmentSpec,
    step: partitioning.Plan,
    policy: partitioning.Plan,
    device: Any,
) -> PlannedSampler:
    """Plans the way of the parameters from a learner to a policy.

    Args:
      experiment: of both.
      spec: of one environment.
      step: of the learner.
      policy: the step of all its streams.
      device: that both were planned for, as `Partition` names it.
    """
    from ..partitioning import simulator, transfer

    builder = experiment.builder
    update = builder.make_update(experiment.make_networks(spec), spec)
    source, computed = _parameters(update, step)
    learner, sampler = step.mesh.size, policy.mesh.size
    topology = simulator.hosts_of(device, learner + sampler)

    def to(first: int) -> TransferPlan:
        target = transfer.input_layouts(policy, ["params"], range(first, first + sampler))
        return transfer.plan(source, target, topology)

    beside, phases = to(learner), None
    if answers_prompts(spec):
        groups = builder.config.batch_size
        answering, learning = (
            plan.steps[-1].simulation.predicted_seconds.total for plan in (policy, step)
        )
        answering *= groups / builder.num_envs
        group, length = spec.actions.shape
        tokens = groups * group * (spec.observations["prompt"].shape[-1] + length)
        phases = StepPhases(groups, tokens, answering, beside.seconds, learning)
    return PlannedSampler(policy, beside, to(0), computed, phases)


def answers_prompts(spec: EnvironmentSpec) -> bool:
    """True if actions are answers to prompts."""
    return action_spaces.kinds_of(spec.actions) == {action_spaces.ANSWERS}


def _parameters(
    update: Update, step: partitioning.Plan
) -> tuple[dict[str, ArrayLayout], tuple[str, ...]]:
    """The policy's parameters at the learner: layouts by path, and paths of computed ones.

    Args:
      update: the agent's.
      step: its plan.
    """
    from ..partitioning import transfer
    from ..partitioning.ir.trace import path_text

    state = jax.eval_shape(lambda: update.init(jax.random.key(0)))
    names = [
        path_text((planning.STATE,), path)
        for path, _ in jax.tree_util.tree_flatten_with_path(state)[0]
    ]
    traced, params = jax.make_jaxpr(
        lambda state: update.variables(state)["policy"], return_shape=True
    )(state)
    held = dict(zip(traced.jaxpr.invars, names, strict=True))
    layouts = transfer.input_layouts(step, [planning.STATE])
    source, computed = {}, []
    for out, (path, leaf) in zip(
        traced.jaxpr.outvars, jax.tree_util.tree_flatten_with_path(params)[0], strict=True
    ):
        name = path_text(("params",), path)
        if out in held:
            source[name] = layouts[held[out]]
        else:
            computed.append(name)
            axes = step.mesh.axes
            source[name] = transfer.ArrayLayout.of_spec(leaf.shape, leaf.dtype, axes, ())
    return source, tuple(computed)


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
