"""The Launchpad program of an experiment: its roles and who speaks with whom."""

from __future__ import annotations

import os
import pathlib
from typing import TYPE_CHECKING, Any

import launchpad as lp
from launchpad.nodes.dereference import Deferred

from ..... import environments
from .....partitioning import virtual
from .... import seeds
from ....errors import RequestError
from ....experiment import Experiment, check_identity
from ....files.checkpoints import Checkpoint, Store
from ....files.directory import RunDirectory
from ....local import components
from ....maker import Maker
from ... import addresses
from ...deployment import Roles
from ...gang import ranks as ranks_of
from ...roles import inference
from ...roles.actor import ActorCrew, ActorRole
from ...roles.counter import Counter
from ...roles.evaluator import EvaluatorRole
from ...roles.follower import FollowerRole
from ...roles.learner import LearnerRole
from ...roles.replay import ReplayRole
from ...roles.variables import VariableRole
from ...supervision.role import Settings
from .board import CourierBoard
from .nodes import AddressNode, ServiceNode, WorkerNode
from .replay import ReverbService

if TYPE_CHECKING:
    from .....environments import EnvironmentSpec


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
      listen: address on which its servers listen.
    """

    def __init__(
        self, experiment: Experiment, directory: pathlib.Path, num_actors: int, listen: str
    ):
        super().__init__(experiment.builder.name)
        self.experiment = experiment
        self.directory = directory
        self.num_actors = num_actors
        self.listen = listen
        self.resume = False
        self.resumed: Checkpoint | None = None
        self.counter: Any = None
        self.replay_spec: Any = None


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
      **roles: fields of `Roles`: `num_actors` or `actors`, `evaluators`, `learner_hosts`, ...

    Raises:
      RequestError: if a number of roles cannot be, the address to listen on is none of this
        machine, a batch cannot be shared by the hosts of the learner, or the run cannot go on as
        asked.
    """
    wanted = Roles.of(roles)
    addresses.require_own(wanted.listen)
    path = pathlib.Path(directory)
    program = Program(experiment, path, wanted.actors, wanted.listen)
    if resume:
        program.resume = True
        program.resumed = _checkpoint(experiment, path, warn)
    spec = _environment_spec(experiment)
    components.check_partition(experiment, spec)
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
        streams = roles.actors * self._experiment.builder.num_envs
        self._maker = Maker(self._experiment, spec, streams)
        self._maker.check_replay()

    def add(self) -> None:
        program, roles, experiment, spec, maker = (
            self._program, self._roles, self._experiment, self._spec, self._maker,
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
                _serve_replay,
                maker=maker,
                folder=self._replay_folder,
                checkpoints=self._checkpoints,
                counter=counter,
            ),
        )
        ranks = ranks_of.settings(experiment, spec, roles)
        service, board = Deferred(ReverbService, replay), Deferred(CourierBoard, variables)
        self._add(
            "learner",
            WorkerNode(
                ranks[0],
                LearnerRole,
                maker,
                self._checkpoints,
                counter,
                board,
                service,
                self._replay_folder,
                hosts=len(ranks),
            ),
        )
        for rank in range(1, len(ranks)):
            follows = (maker, self._checkpoints, service, len(ranks), rank)
            self._add("learner", WorkerNode(ranks[rank], FollowerRole, *follows))
        servers = [
            self._add("inference", self._inference(board)) for _ in range(roles.inference_servers)
        ]
        for first in range(0, roles.actors, roles.actors_per_process):
            indices = range(first, min(first + roles.actors_per_process, roles.actors))
            crew = []
            for index in indices:
                asked = servers[index % len(servers)] if servers else None
                crew.append(Deferred(ActorRole, maker, index, counter, service, board, asked))
            settings = _held(reverb=True, hang_seconds=roles.hang_seconds)
            self._add("actor", WorkerNode(settings, ActorCrew, *crew))
        for index in range(roles.evaluators):
            self._add(
                "evaluator",
                WorkerNode(_held(), EvaluatorRole, maker, index, counter, board),
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

    def _inference(self, board: Any) -> ServiceNode:
        roles = self._roles
        clients = -(-roles.actors // roles.inference_servers)
        batch = roles.inference_batch or clients * self._experiment.builder.num_envs
        return ServiceNode(
            "inference server",
            _held(accelerator=roles.learner_device != "cpu", hang_seconds=120.0),
            inference.InferenceRole,
            self._maker,
            batch,
            roles.inference_wait,
            board,
            threads=2 * clients + 4,
        )


def _serve_replay(address: str, **arguments: Any) -> ReplayRole:
    return ReplayRole(service=ReverbService(address), **arguments)


def _held(**settings: Any) -> Settings:
    """Settings of a role that sees no virtual devices: they are meant for the learner."""
    if settings.get("accelerator"):
        return Settings(**settings)
    return Settings(environment=tuple(virtual.environment(None).items()), **settings)
