"""The Launchpad program of an experiment: its roles and who speaks with whom."""

from __future__ import annotations

import dataclasses
import os
import pathlib
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import launchpad as lp
from launchpad.nodes.dereference import Deferred

from .. import environments
from . import seeds
from .checkpoints import Checkpoint, Store
from .directory import RunDirectory
from .errors import RequestError
from .experiment import Experiment, check_identity
from .nodes import inference
from .nodes.actor import ActorRole
from .nodes.base import AddressNode, ServiceNode, WorkerNode
from .nodes.counter import Counter
from .nodes.evaluator import EvaluatorRole
from .nodes.learner import LearnerRole
from .nodes.replay import Connection, ReplayRole
from .nodes.variables import VariableRole
from .supervision.role import Settings

if TYPE_CHECKING:
    from ..environments import EnvironmentSpec


class Program(lp.Program):
    """A Launchpad program that knows its experiment.

    Attributes:
      experiment: what is run.
      directory: of the run.
      num_actors: how many actors it has.
      resumed: the checkpoint that it goes on from; None: it begins.
      resume: whether it is to go on with an earlier run.
      counter: handle of the counter.
      replay_spec: what the agent asks of its replay.
    """

    def __init__(self, experiment: Experiment, directory: pathlib.Path, num_actors: int):
        super().__init__(experiment.builder.name)
        self.experiment = experiment
        self.directory = directory
        self.num_actors = num_actors
        self.resume = False
        self.resumed: Checkpoint | None = None
        self.counter: Any = None
        self.replay_spec: Any = None


@dataclasses.dataclass(frozen=True)
class Roles:
    """How many of each, and where."""

    actors: int = 1
    """Each has as many environments as the agent's config says (`num_envs`)."""
    evaluators: int = 1
    inference_servers: int = 0
    """0: actors hold the parameters themselves."""
    inference_batch: int | None = None
    """Rows of a full batch; None: those of all actors that one server serves."""
    inference_wait: float = 0.002
    """Seconds for which the first request of a batch waits for others."""
    learner_device: str = "cpu"
    """cpu or gpu. Only the learner and the inference servers see the accelerator."""
    hang_seconds: float = 20.0
    """How long an actor's environment may take for one step before the actor is started again."""

    def __post_init__(self) -> None:
        for name, least in (("actors", 1), ("evaluators", 1), ("inference_servers", 0)):
            value = getattr(self, name)
            if value < least:
                raise RequestError(f"{name} is {value}; it must be at least {least}.")
        if self.inference_batch is not None and self.inference_batch < 1:
            raise RequestError(
                f"inference_batch is {self.inference_batch}; it must be at least 1, or None."
            )
        if self.inference_servers > self.actors:
            raise RequestError(
                f"there are {self.inference_servers} inference servers for {self.actors} actors; "
                "have at most one for each actor."
            )
        if self.learner_device not in ("cpu", "gpu"):
            raise RequestError(
                f"the learner's device is {self.learner_device!r}; it must be cpu or gpu."
            )


def make_program(
    experiment: Experiment,
    directory: str | os.PathLike[str],
    *,
    resume: bool = False,
    warn: Any = lambda line: None,
    **roles: Any,
) -> Program:
    """The program of an experiment.

    Args:
      experiment: what is run; it goes to the roles' processes, so it must be picklable by
        cloudpickle.
      directory: of the run.
      resume: go on from the newest checkpoint in it; the number of actors may be another.
      warn: called with a line for every damaged checkpoint.
      **roles: fields of `Roles`: `num_actors` or `actors`, `evaluators`, ...

    Raises:
      RequestError: if a number of roles cannot be, or the run cannot go on as asked.
    """
    if "num_actors" in roles:
        roles["actors"] = roles.pop("num_actors")
    known = {field.name for field in dataclasses.fields(Roles)}
    if unknown := sorted(set(roles) - known):
        raise RequestError(f"{unknown[0]} is no setting of a program; there are {sorted(known)}.")
    wanted = Roles(**roles)
    path = pathlib.Path(directory)
    program = Program(experiment, path, wanted.actors)
    if resume:
        program.resume = True
        program.resumed = _checkpoint(experiment, path, warn)
    spec = _environment_spec(experiment)
    program.replay_spec = experiment.builder.make_replay_spec(spec)
    _Parts(program, wanted, spec).add()
    return program


def _environment_spec(experiment: Experiment) -> EnvironmentSpec:
    seed = seeds.derive(experiment.seed, "environment", 0, 0)
    environment = experiment.environment_factory(seed=seed, num_envs=1, evaluation=False)
    try:
        return environments.make_spec(environment)
    finally:
        environment.close()


def _checkpoint(experiment: Experiment, path: pathlib.Path, warn: Any) -> Checkpoint | None:
    checkpoint = Store(RunDirectory(path).checkpoints).newest(warn)
    if checkpoint is not None:
        check_identity(checkpoint.identity, experiment.identity(), checkpoint.path)
        if "ledger" not in checkpoint.counters:
            raise RequestError(
                f"{checkpoint.path} was written by a run in one process; go on with it in one."
            )
    return checkpoint


class _Parts:
    """Adds the roles to a program, the ones that others ask first."""

    def __init__(self, program: Program, roles: Roles, spec: EnvironmentSpec):
        self._program, self._roles, self._spec = program, roles, spec
        self._experiment = program.experiment
        self._directory = RunDirectory(program.directory)
        self._replay_folder = str(program.directory.resolve() / "replay")
        self._checkpoints = str(self._directory.checkpoints.resolve())
        self._streams = roles.actors * self._experiment.builder.num_envs

    def add(self) -> None:
        program, roles, experiment, spec = (
            self._program, self._roles, self._experiment, self._spec,
        )  # fmt: skip
        counter = self._add("counter", self._counter())
        program.counter = counter
        variables = self._add(
            "variables", ServiceNode("variable server", _held(), VariableRole, threads=32)
        )
        replay = self._add(
            "replay",
            AddressNode(
                _held(reverb=True),
                ReplayRole,
                experiment,
                spec,
                self._streams,
                self._replay_folder,
                self._checkpoints,
                counter,
            ),
        )
        on_device = roles.learner_device != "cpu"
        self._add(
            "learner",
            WorkerNode(
                # A step may take long to compile; a stopped process is noticed all the same.
                Settings(reverb=True, accelerator=on_device, hang_seconds=600, start_seconds=600),
                LearnerRole,
                experiment,
                spec,
                self._checkpoints,
                counter,
                variables,
                Deferred(Connection, replay, experiment, spec, self._streams),
                self._replay_folder,
            ),
        )
        servers = [
            self._add("inference", self._inference(variables))
            for _ in range(roles.inference_servers)
        ]
        for index in range(roles.actors):
            if servers:
                make = Deferred(inference.remote_actors, servers[index % len(servers)])
            else:
                make = Deferred(inference.local_actors, variables)
            node = WorkerNode(
                _held(reverb=True, hang_seconds=roles.hang_seconds),
                ActorRole,
                experiment,
                spec,
                index,
                roles.actors,
                counter,
                Deferred(Connection, replay, experiment, spec, self._streams),
                make,
            )
            self._add("actor", node)
        for index in range(roles.evaluators):
            self._add(
                "evaluator",
                WorkerNode(_held(), EvaluatorRole, experiment, spec, index, counter, variables),
            )

    def _add(self, label: str, node: Any) -> Any:
        return self._program.add_node(node, label=label)

    def _counter(self) -> ServiceNode:
        experiment, resumed = self._experiment, self._program.resumed
        return ServiceNode(
            "counter",
            _held(),
            Counter,
            threads=max(16, 2 * self._roles.actors),
            budget=experiment.num_actor_steps,
            evaluation_period=experiment.evaluation_period,
            episodes=experiment.evaluation.episodes,
            final_episodes=experiment.evaluation.final_episodes,
            state=dict(resumed.counters["ledger"]) if resumed else None,
        )

    def _inference(self, variables: Any) -> ServiceNode:
        roles = self._roles
        clients = -(-roles.actors // roles.inference_servers)
        batch = roles.inference_batch or clients * self._experiment.builder.num_envs
        return ServiceNode(
            "inference server",
            _held(accelerator=roles.learner_device != "cpu", hang_seconds=120.0),
            inference.InferenceRole,
            self._experiment,
            self._spec,
            self._streams,
            batch,
            roles.inference_wait,
            variables,
            threads=2 * clients + 4,
        )


def _held(**settings: Any) -> Settings:
    """Settings of a role that never sees the accelerator or virtual devices meant for the learner."""
    flags = re.sub(
        r"--xla_force_host_platform_device_count=\d+", "", os.environ.get("XLA_FLAGS", "")
    )
    if settings.get("accelerator"):
        return Settings(**settings)
    return Settings(environment=(("XLA_FLAGS", flags.strip()),), **settings)


def describe(program: lp.Program) -> Mapping[str, int]:
    """How many nodes each label has."""
    return {label: len(nodes) for label, nodes in program.groups.items()}
