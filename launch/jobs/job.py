"""A run as a job of a scheduler, whichever that is."""

from __future__ import annotations

import dataclasses
import math
import pathlib
import re
import shlex
from typing import ClassVar

from ...agents.bounds import AllBounds, check
from ..errors import RequestError
from ..roles import Roles


@dataclasses.dataclass(frozen=True)
class Job:
    """The facts that a scheduler must know."""

    train: str
    """The command that begins the run, without --out and --address."""
    out: str
    """Directory of the run, in a folder that all nodes see."""
    roles: Roles
    """Of the run, whose place is reckoned with."""
    learner_device: str = "auto"
    """The device of the learner, as of `Experiment`."""
    nodes: int = 2
    """Machines, or pods, that roles are on."""
    cpus: int | None = None
    """Processors of each; None: as many as the roles take."""
    minutes: int = 24 * 60
    """After which the scheduler ends it."""
    image: str = ""
    """Of Kubernetes: of the pods, with Ray and troupe in it."""
    claim: str = ""
    """Of Kubernetes: the volume claim in which `out` lies."""

    bounds: ClassVar[AllBounds] = {
        "nodes": (1, 4096),
        "cpus": (1, 4096),
        "minutes": (10, 1_000_000),
    }

    def __post_init__(self) -> None:
        check(self, RequestError)
        if not pathlib.PurePath(self.out).is_absolute():
            raise RequestError(
                f"--out is {self.out!r}; give a job the whole path, in a folder that all nodes see."
            )
        if self.roles.learner_hosts > self.nodes:
            raise RequestError(
                f"{self.roles.learner_hosts} learner hosts have no node each: there are "
                f"{self.nodes}; ask for more --nodes or fewer --learner-hosts."
            )

    @property
    def name(self) -> str:
        """Lower-case letters, digits and hyphens, as Kubernetes wants names."""
        words = re.sub(r"[^a-z0-9]+", "-", pathlib.PurePath(self.out).name.lower())
        return f"troupe-{words}"[:40].strip("-")

    @property
    def cpus_of_a_node(self) -> int:
        if self.cpus is not None:
            return self.cpus
        # The learner's processes have a node each; actors are spread over all.
        actors = -(-self.roles.actors // self.roles.actors_per_process)
        cpus = 1.0 if self.roles.actor_cpus is None else self.roles.actor_cpus
        of_actors = -(-actors // self.nodes) * cpus
        return max(1, math.ceil(of_actors) + 1)

    @property
    def gpus_of_a_node(self) -> int:
        return self.roles.learner_gpus or (1 if self.learner_device in ("gpu", "tpu") else 0)

    @property
    def begin(self) -> str:
        """The command that begins the run in what the job has started."""
        return f"{self.train} --address auto --out {shlex.quote(self.out)}"

    @property
    def go_on(self) -> str:
        """The command that goes on with it."""
        return f"troupe resume {shlex.quote(self.out)} --address auto"

    @property
    def result(self) -> str:
        """The file that is there once the run is complete."""
        return shlex.quote(f"{self.out}/result.json")

    @property
    def outcome(self) -> str:
        """A command that ends as the complete run did, which fails where it missed its target."""
        return f"""! grep -q '"reached": false' {self.result}"""
