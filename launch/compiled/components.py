"""The parts of a compiled run, taken from the builder."""

from __future__ import annotations

import math
import os
from typing import TYPE_CHECKING, Any

import jax

from ... import environments
from ...agents.builder import Builder
from ...agents.programs import dispatch, planning
from ...agents.programs.whole_loop import WholeLoop
from ...agents.replay.device import DeviceReplay
from ...agents.replay.shapes import sample_shapes
from ...environments.functional import FunctionalVector
from .. import devices
from ..errors import RequestError
from ..experiment import Experiment, require_no_sampler
from ..factory import ComponentFactory
from ..local.components import Components
from ..validation import updates
from . import settings
from .episodes import EpisodePrograms
from .evaluator import CompiledEvaluator
from .layout import Layout, LoopOverMesh, RunsOverDevices
from .population import Keys, Population
from .program import LoopProgram, Settings
from .views import CompiledActor, CompiledLearner, CompiledReplay

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ...agents.interfaces import ActorCore, Update
    from ...agents.replay.items import Sample
    from ...environments import EnvironmentSpec, Vector

_OTHERS = "take --launch one-process, threads, processes or ray"
_OVERRIDDEN = (
    "make_replay_tables",
    "make_adder",
    "make_dataset_iterator",
    "make_actor",
    "make_learner",
)
"""Methods of a builder that make what a program cannot hold, where they are not the base's."""


class Blueprint:
    """What all runs of a population have in common, and how their program is made.

    Attributes:
      experiments: one of each run.
      size: S; None: one run, whose arrays have no leading dimension.
    """

    def __init__(self, experiments: Sequence[Experiment]):
        """Takes the runs.

        Raises:
          RequestError: if they differ in more than seeds and numbers of their config, or one has a
            mesh of the policy's own.
        """
        for experiment in experiments:
            require_no_sampler(experiment)
        self.experiments = experiments
        self.size = None if len(experiments) == 1 else len(experiments)
        self._swept = settings.differing(experiments)
        if self.size is not None:
            require_spreadable(experiments[0], self.size)
        self._first: tuple[ComponentFactory, FunctionalVector] | None = None

    def population(self) -> Population:
        """Returns the population, none of whose members has begun."""
        return Population(self.size, self._build)

    def member(
        self, population: Population, index: int, experiment: Experiment, environment: Vector
    ) -> Components:
        """All parts of a run whose loop is one program.

        Args:
          population: that it joins.
          index: of the run.
          experiment: what is run.
          environment: of training; its functions and its keys are taken into the program.

        Raises:
          RequestError: if something of it cannot be compiled, naming it and the launches that can.
        """
        vector = require_compilable(experiment, environment)
        spec = environments.make_spec(environment)
        factory = ComponentFactory(experiment, spec, environment.num_envs)
        self._first = self._first or (factory, vector)  # Whoever comes first stands for all.
        keys = Keys(vector.keys, *(factory.key(role) for role in ("actor", "learner", "replay")))
        member = population.join(index, keys)
        learner: Any = CompiledLearner(member)
        replay: Any = CompiledReplay(member)
        actor = CompiledActor(member)
        chosen = devices.ChosenDevices(member.device, member.device, member.note)
        evaluator = CompiledEvaluator(
            member, experiment, spec, factory.networks, learner, member.device
        )
        return Components(spec, environment, replay, learner, actor, evaluator, chosen)

    def _build(self) -> tuple[LoopProgram, EpisodePrograms]:
        """Makes the programs; see `Population`."""
        assert self._first is not None
        factory, vector = self._first
        spec, num_envs = factory.spec, vector.num_envs
        builder, networks = factory.builder, factory.networks
        settings.require_same_replay(self.experiments, spec)
        replay_spec = builder.make_replay_spec(spec)
        extras_spec = builder.make_extras_spec(factory.policy)
        steps = builder.steps_per_dispatch
        replay = DeviceReplay(
            replay_spec, spec, extras_spec, num_envs=num_envs, steps_per_sample=steps
        )
        batch = sample_shapes(replay_spec, spec, extras_spec)
        updates.check(factory, networks, batch)
        layout = self._layout(spec, lambda: builder.make_update(networks, spec), batch, num_envs)
        _require_room(replay.num_bytes * (self.size or 1), self.size or 1, layout)
        swept = settings.values(self.experiments, self._swept)

        def make(of_run: Settings, axis: str | None) -> WholeLoop:
            own = settings.applied(builder, of_run)
            policy = own.make_policy(networks, spec, num_streams=num_envs)
            update = (
                layout.update
                if isinstance(layout, LoopOverMesh)
                else own.make_update(networks, spec)
            )
            return WholeLoop(vector.played, policy, update, replay, steps, axis)

        def judged(of_run: Settings) -> ActorCore:
            return settings.applied(builder, of_run).make_policy(networks, spec, evaluation=True)

        def opposing(of_run: Settings) -> ActorCore:
            return settings.applied(builder, of_run).make_policy(networks, spec)

        for name in make({}, None).host_callers(num_envs):
            raise RequestError(
                f"{name} calls the host (a print or a callback), for which no program of many "
                f"steps waits; {_OTHERS}."
            )
        settings.require_program(make, swept, num_envs)
        program = LoopProgram(make, swept, self.size, layout)
        # A policy of one run is judged on one device.
        judging = layout if self.size is not None else Layout(layout.device)
        return program, EpisodePrograms(judged, opposing, swept, self.size, judging)

    def _layout(
        self,
        spec: EnvironmentSpec,
        make_update: Callable[[], Update],
        batch: Sample,
        num_envs: int,
    ) -> Layout:
        """Lays out the arrays of a program.

        Raises:
          RequestError: if the update cannot be spread as it was asked to be.
        """
        experiment = self.experiments[0]
        partition = experiment.partition
        if partition is None:
            named = devices.named(experiment.learner_device, "learner")
            return Layout(named or jax.local_devices()[0])
        if self.size is not None:
            return RunsOverDevices(partition.mesh.devices(), self.size)
        from .. import planning as plans  # Only who has a mesh pays for it.

        plans.require_sharded(partition)
        with plans.refused(experiment, spec):
            spread = planning.spread_update(make_update(), partition, dispatch.on_device(batch))
        if spread.step.plan.pipeline is not None:
            raise RequestError(
                "--launch compiled runs no pipeline: acting and learning are one program there, "
                f"which every device runs whole; {_OTHERS}."
            )
        return LoopOverMesh(spread, num_envs)


def require_compilable(experiment: Experiment, environment: Vector) -> FunctionalVector:
    """Returns the environments, which are written in JAX.

    Raises:
      RequestError: if they are not, or the builder makes parts of its own.
    """
    builder = experiment.builder
    if not experiment.acts:
        raise RequestError(
            f"--launch compiled is of agents that act, and {builder.name} learns from data; "
            "take --launch one-process."
        )
    if not isinstance(environment, FunctionalVector):
        raise RequestError(
            f"{experiment.env} is not written in JAX, so that no program can hold it; {_OTHERS}, "
            f"or an environment whose id begins with jax: (see docs/compiled.md)."
        )
    for name in _OVERRIDDEN:
        if getattr(type(builder), name) is not getattr(Builder, name):
            raise RequestError(
                f"{builder.name} has a {name} of its own, which no program can hold; {_OTHERS}."
            )
    return environment


def require_spreadable(experiment: Experiment, num_runs: int) -> None:
    """Raises ValueError where several runs cannot be spread over a mesh as it was asked."""
    partition = experiment.partition
    if partition is None:
        return
    from ...partitioning.tactics.batch import BatchParallel  # Only who has a mesh pays for it.

    others = (partition.recompute, partition.placement, partition.decisions)
    if any(one is not None for one in others) or not all(
        isinstance(one, BatchParallel) for one in partition.schedule
    ):
        raise RequestError(
            f"{num_runs} runs of one program are spread over a mesh whole, as many on each device; "
            "leave out all but --mesh and --schedule batch:AXIS, or train them with --parallel."
        )
    if num_runs % (size := partition.mesh.size):
        raise RequestError(
            f"{num_runs} runs cannot be divided by the {size} devices of the mesh; take "
            f"{math.ceil(num_runs / size) * size} runs or a smaller mesh."
        )
    partition.mesh.devices()  # Are there so many?


def _require_room(num_bytes: int, num_runs: int, layout: Layout) -> None:
    """Raises RequestError where the replays of all runs do not fit the device's memory."""
    num_bytes, device = layout.replay_bytes(num_bytes), layout.device
    limit = _memory(device)
    if limit is not None and num_bytes > limit:
        whose = "the replay takes" if num_runs == 1 else f"the replays of {num_runs} runs take"
        fewer = "" if num_runs == 1 else " or fewer runs at once"
        raise RequestError(
            f"{whose} {num_bytes / 2**30:.1f} GiB of the device's memory, and "
            f"{device.device_kind} has {limit / 2**30:.1f} GiB; choose a smaller replay "
            f"(--config.max_replay_size){fewer}."
        )


def _memory(device: jax.Device) -> int | None:
    """Returns the bytes that a device has for us; None: it does not say."""
    if device.platform == "cpu":  # A tenth is left to all else that runs there.
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") * 9 // 10
    return (device.memory_stats() or {}).get("bytes_limit")
