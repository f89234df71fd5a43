"""The number of roles of each kind in a run, and the engine that keeps them running."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar

from ..agents.bounds import Above, AllBounds, check
from ..agents.programs.placement import Partition
from . import extras
from .errors import RequestError

KINDS = ("one-process", "threads", "processes", "ray", "compiled")
"""Kinds of launch."""

LAUNCHPAD, RAY = ENGINES = "launchpad", "ray"
"""Libraries that keep roles running, where a launch is not in one process."""

NO_HOSTS = (
    "--hosts is gone: a run over several machines is one of Ray, --launch ray --address "
    "HOST:PORT, and `troupe deploy slurm|kubernetes` writes the job of one."
)


@dataclasses.dataclass(frozen=True)
class Roles:
    """The number of roles of each kind, and their places."""

    actors: int = 1
    """Each has as many environments as the agent's config says (`num_envs`)."""
    actors_per_process: int = 1
    """Actors that share a process, each in a thread of its own: for environments that wait."""
    evaluators: int = 1
    inference_servers: int = 0
    """0: actors hold the parameters themselves."""
    inference_batch: int | None = None
    """Rows of a full batch; None: those of all actors that one server serves."""
    inference_wait: float = 0.002
    """Seconds for which the first request of a batch waits for others."""
    inference_mesh: str | None = None
    """Devices over which each inference server computes the policy, and each evaluator:
    data=2,model=2; None: one."""
    inference_schedule: str | None = None
    """Tactics of that mesh: batch:data,megatron:model."""
    learner_hosts: int = 1
    """Processes that are the learner together, each with its share of every batch."""
    learner_gpus: int | None = None
    """Of Ray: GPUs that each process of the learner has of its node; None: those of this machine,
    as `Experiment.learner_device` says."""
    listen: str = "127.0.0.1"
    """IPv4 address of this machine on which the replay and the other servers listen. Whoever can
    connect to it can run code."""
    hang_seconds: float = 20.0
    """Seconds an actor's environment may take for one step until the actor is started anew."""
    address: str | None = None
    """Of Ray: auto or HOST:PORT, of a cluster that is there; None: one is started here."""
    actor_cpus: float | None = None
    """Of Ray: processors of its node that each process of actors takes; None: one, or a part of one
    where the cluster has no room for that."""

    bounds: ClassVar[AllBounds] = {
        "actors": (1, 4096),
        "actors_per_process": (1, 4096),
        "evaluators": (1, 4096),
        "inference_servers": (0, 4096),
        "inference_batch": (1, 1_000_000),
        "inference_wait": (0.0, 60.0),
        "learner_hosts": (1, 4096),
        "learner_gpus": (1, 4096),
        "hang_seconds": Above(0.0, 1e6),
        "actor_cpus": (0.0, 4096.0),
    }
    flags: ClassVar[Mapping[str, str]] = {
        name: f"--{name.replace('_', '-')}"
        for name in (
            *("actors", "inference_servers", "inference_mesh", "inference_schedule"),
            *("learner_hosts", "learner_gpus", "listen", "address", "actor_cpus"),
        )
    }

    def __post_init__(self) -> None:
        check(self, RequestError)
        if self.inference_servers > self.actors:
            raise RequestError(
                f"there are {self.inference_servers} inference servers for {self.actors} actors; "
                "have at most one for each actor (--inference-servers, --actors)."
            )
        self.inference_partition()

    def inference_partition(self) -> Partition | None:
        """The mesh and the tactics of inference servers and evaluators; None: one device.

        Raises:
          RequestError: if one was given without the other, or either does not read.
        """
        mesh, schedule = self.inference_mesh, self.inference_schedule
        if mesh is None and schedule is None:
            return None
        if mesh is None or schedule is None or not self.inference_servers:
            missing = "servers" if mesh and schedule else "schedule" if mesh else "mesh"
            given = "schedule" if mesh is None else "mesh"
            raise RequestError(
                f"--inference-{given} was given without --inference-{missing}; give all of "
                "--inference-servers, --inference-mesh and --inference-schedule, or none."
            )
        from .. import partitioning  # Only who has a mesh pays for it.

        try:
            return Partition(
                partitioning.parse_mesh(mesh), tuple(partitioning.parse_schedule(schedule))
            )
        except ValueError as error:
            raise RequestError(f"{error}.") from error

    def given(self) -> dict[str, Any]:
        """The fields that are not as by default."""
        values, default = dataclasses.asdict(self), Roles()
        return {name: one for name, one in values.items() if one != getattr(default, name)}

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> Roles:
        """From a mapping of fields; `num_actors` is another name of `actors`.

        Raises:
          RequestError: if there is no such field, or a number cannot be.
        """
        values = dict(values)
        if "num_actors" in values:
            values["actors"] = values.pop("num_actors")
        known = [field.name for field in dataclasses.fields(cls)]
        for name in values:
            if name == "hosts":
                raise RequestError(NO_HOSTS)
            if name not in known:
                raise RequestError(f"a program has no setting {name}; it has {', '.join(known)}.")
        return cls(**values)


def choose_engine(kind: str, roles: Mapping[str, Any], engine: str | None = None) -> str | None:
    """Chooses the engine of a launch.

    Args:
      kind: of launch, one of `KINDS`.
      roles: fields of `Roles` that were given.
      engine: one of `ENGINES`; None: the one of the kind, which of processes is Launchpad where it
        is installed, else Ray.

    Returns:
      The engine; None: it is a launch in this process.

    Raises:
      RequestError: if there is no such kind or engine, the roles cannot be, or these do not go
        together.
    """
    if kind not in KINDS:
        raise RequestError(f"the launch is {kind!r}; it can be {', '.join(KINDS)}.")
    if engine not in (None, *ENGINES):
        raise RequestError(f"the engine is {engine!r}; it can be {' or '.join(ENGINES)}.")
    hosts = roles.get("learner_hosts", 1)
    if hosts > 1 and kind not in ("processes", "ray"):
        raise RequestError(
            f"--learner-hosts {hosts} needs --launch processes or --launch ray: the hosts of a "
            "learner are processes that jax joins."
        )
    if kind in ("one-process", "compiled"):
        for name in ("engine" if engine else None, *roles):
            if name is not None:
                flag = name.replace("_", "-")
                raise RequestError(f"--{flag} needs --launch threads, processes or ray.")
        return None
    only = {"threads": LAUNCHPAD, "ray": RAY}.get(kind)
    if engine is None:
        engine = only or (LAUNCHPAD if extras.is_installed("launchpad", "reverb") else RAY)
    if only not in (None, engine):
        raise RequestError(f"--launch {kind} is of {only} alone; leave out --engine {engine}.")
    for name in ("address", "actor_cpus", "learner_gpus"):
        if name in roles and engine != RAY:
            raise RequestError(
                f"--{name.replace('_', '-')} needs --launch ray, or --launch processes with "
                "--engine ray."
            )
    if "listen" in roles and engine == RAY:
        raise RequestError(
            "--listen is for threads and processes of Launchpad; where Ray listens is said to it "
            "(see docs/clusters.md)."
        )
    Roles.of(roles)
    return engine
