"""Makes the deployment of an experiment: its roles, and who speaks with whom."""

from __future__ import annotations

import dataclasses
import os
import pathlib
from collections.abc import Mapping
from typing import Any

from ... import environments
from ...agents.programs import runtime
from ...agents.programs.placement import Partition
from .. import lifecycle, planning, seeds
from ..errors import RequestError
from ..evaluation import opponents
from ..experiment import Experiment, require_experiment, require_no_sampler
from ..factory import ComponentFactory, check_budget, check_streams, short_budget
from ..files.checkpoints import Checkpoint
from ..files.directory import RunDirectory
from ..local import saver
from ..remarks import remarks
from ..roles import Roles
from ..validation import updates
from . import addresses
from .deployment import Deployment, Reference, RolePlan, Say
from .gang import ranks as ranks_of
from .roles.actor import ActorCrew
from .roles.counter import Counter
from .roles.evaluator import EvaluatorRole
from .roles.follower import FollowerRole
from .roles.inference import InferenceRole
from .roles.learner import LearnerRole
from .roles.replay_role import ReplayRole
from .roles.variables import VariableRole
from .supervision.role import Settings

_COUNTER = Reference("counter")
_BOARD = Reference("variables", "board")
_SERVICE = Reference("replay", "replay")


def deploy(
    experiment: Experiment,
    directory: str | os.PathLike[str],
    *,
    resume: bool = False,
    warn: Say = lambda line: None,
    **roles: Any,
) -> Deployment:
    """The deployment of an experiment.

    Args:
      experiment: what is run.
      directory: of the run.
      resume: go on from the newest checkpoint in it; the number of actors may be another.
      warn: called with a line for every damaged checkpoint.
      **roles: fields of `Roles`: `num_actors` or `actors`, `evaluators`, `learner_hosts`, ...

    Raises:
      RequestError: if a number of roles cannot be, the agent's update cannot be traced, the
        address to listen on is none of this machine, a batch cannot be shared by the hosts of the
        learner, the replay cannot be shared by processes, or the run cannot go on as asked.
    """
    require_experiment(experiment)
    require_no_sampler(experiment)
    experiment.require_data()
    numbers, path = Roles.of(roles), pathlib.Path(directory)
    addresses.require_own(numbers.listen)
    if resume:
        RunDirectory(path).check_free()  # Whose first checkpoint may be still to come.
    resumed = lifecycle.newest(experiment, path, warn) if resume else None
    seed = seeds.derive(experiment.seed, "environment", 0, 0)
    with experiment.make_environment(seed=seed, num_envs=1, evaluation=False) as environment:
        check_streams(experiment, environment.num_agents)
        opponents.face_in_training(environment, warn)
        plays_itself = opponents.self_play_of(environment) is not None
        if plays_itself and numbers.inference_partition() is not None:
            raise RequestError(
                "--env.opponent self and pool have every actor compute the policy of its "
                "opponents, so that it is not spread: leave out --inference-mesh and "
                "--inference-schedule, or take --env.opponent random."
            )
        spec = environments.make_spec(environment)
        said = remarks(experiment, environment)
    experiment = planning.decided(experiment, spec, ranks_of.devices(experiment, numbers))
    # Callbacks are called where the run is begun, and may hold what cannot travel.
    travelling = dataclasses.replace(experiment, callbacks=())
    factory = ComponentFactory(travelling, spec, numbers.actors * experiment.builder.num_envs)
    replay_spec = experiment.builder.make_replay_spec(spec)
    if experiment.acts:
        factory.check_replay()
        if not resume:
            check_budget(experiment)
        said += tuple(short_budget(experiment, replay_spec))
    else:
        _require_nobody_acts(roles)
        replay = factory.offline_replay()  # Each role of the learner loads it for itself.
        if resumed is not None:
            saver.require_same_data(resumed, replay)
    updates.check_before_launch(factory)
    return Deployment(
        experiment=experiment,
        directory=path,
        roles=numbers,
        plans=tuple(_plans(factory, numbers, path.resolve(), resumed, plays_itself)),
        replay_spec=replay_spec,
        remarks=said,
        resume=resume,
        resumed=resumed,
    )


def _plans(
    factory: ComponentFactory,
    roles: Roles,
    path: pathlib.Path,
    resumed: Checkpoint | None,
    plays_itself: bool,
) -> list[RolePlan]:
    """The roles, those that others ask first."""
    experiment = factory.experiment
    files = {
        "checkpoints": str(RunDirectory(path).checkpoints),
        "replay_folder": str(path / "replay"),
    }
    ledger = {
        "budget": experiment.budget,
        "quantum": experiment.builder.num_envs if experiment.acts else 1,
        "evaluation_period": experiment.evaluation_period,
        "clock": experiment.clock.name,
        "episodes": experiment.evaluation.episodes,
        "final_episodes": experiment.evaluation.final_episodes,
        "state": dict(resumed.counters) if resumed else None,
    }
    acts, acts_on_accelerator = experiment.acts, experiment.actor_device not in ("auto", "cpu")
    service = _SERVICE if acts else None
    shared = {"factory": factory, "counter": _COUNTER}
    acting = {**shared, "board": _BOARD, "service": service}
    threads = max(16, 2 * roles.actors)
    plans = [
        RolePlan("counter", Counter, ledger, _settings(), threads),
        RolePlan("variables", VariableRole, {}, _settings(), 32),
    ]
    if acts:
        serving = {**shared, **files, "service": service}
        settings = _settings(reverb=True)
        plans.append(RolePlan("replay", ReplayRole, serving, settings, serves_replay=True))
    ranks = ranks_of.settings(experiment, factory.spec, roles)
    # Then no actor holds any, and evaluators have that mesh too.
    spreads = roles.inference_partition() is not None
    leads = {**acting, **files, "hosts": len(ranks), "spreads": spreads}
    plans.append(RolePlan("learner", LearnerRole, leads, ranks[0]))
    for rank in range(1, len(ranks)):
        follows = {
            "factory": factory,
            "checkpoints": files["checkpoints"],
            "service": service,
            "size": len(ranks),
            "rank": rank,
            "board": _BOARD,
            "spreads": spreads,
        }
        plans.append(RolePlan("learner", FollowerRole, follows, ranks[rank]))
    servers = roles.inference_servers
    plans += [_inference(factory, roles) for _ in range(servers)]
    for first in range(0, roles.actors if acts else 0, roles.actors_per_process):
        indices = range(first, min(first + roles.actors_per_process, roles.actors))
        asked = [Reference("inference", index=i % servers) if servers else None for i in indices]
        board = None if servers and not plays_itself else _BOARD
        crew = {**acting, "board": board, "indices": tuple(indices), "servers": asked}
        settings = _settings(
            accelerator=acts_on_accelerator, reverb=True, hang_seconds=roles.hang_seconds
        )
        plans.append(RolePlan("actor", ActorCrew, crew, settings))
    partition = roles.inference_partition()
    for index in range(roles.evaluators):
        best = str(RunDirectory(path).best)
        judging = {**shared, "board": _BOARD, "index": index, "best": best}
        judging["partition"] = partition
        settings = _settings(partition, accelerator=acts_on_accelerator)
        plans.append(RolePlan("evaluator", EvaluatorRole, judging, settings))
    return plans


def _require_nobody_acts(roles: Mapping[str, Any]) -> None:
    """Raises RequestError where roles are asked for that learning from data does not have."""
    for name in ("actors", "num_actors", "actors_per_process", "inference_servers"):
        if roles.get(name):
            flag = Roles.flags.get(name.removeprefix("num_"), name)
            raise RequestError(
                f"{flag} is {roles[name]}, but nobody acts where an agent learns from data; leave "
                "it out."
            )


def _inference(factory: ComponentFactory, roles: Roles) -> RolePlan:
    clients = -(-roles.actors // roles.inference_servers)
    streams = clients * factory.builder.num_envs
    partition = roles.inference_partition()
    arguments = {
        "factory": factory,
        "batch_size": roles.inference_batch or streams,
        "capacity": streams,
        "wait_seconds": roles.inference_wait,
        "board": _BOARD,
        "partition": partition,
    }
    sees = ranks_of.sees_accelerator(factory.experiment, roles)
    settings = _settings(partition, accelerator=sees, hang_seconds=120.0)
    return RolePlan("inference", InferenceRole, arguments, settings, 2 * clients + 4)


def _settings(partition: Partition | None = None, **settings: Any) -> Settings:
    """Settings of a role that sees the virtual devices of its own mesh, not of the learner's."""
    if settings.get("accelerator"):
        return Settings(**settings)
    count = None if partition is None else partition.mesh.size
    return Settings(environment=tuple(runtime.with_virtual_devices(count).items()), **settings)
