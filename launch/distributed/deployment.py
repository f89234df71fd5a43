"""How many roles a program has, of which kind, and where they run."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from ..errors import RequestError

KINDS = ("one-process", "threads", "processes")
"""Kinds of launch."""


@dataclasses.dataclass(frozen=True)
class Roles:
    """How many of each, and where."""

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
    learner_hosts: int = 1
    """Processes that are the learner together, each with its share of every batch."""
    learner_device: str = "cpu"
    """cpu or gpu. Only the learner and the inference servers see the accelerator."""
    listen: str = "127.0.0.1"
    """IPv4 address of this machine on which the replay and the other servers listen. Whoever can
    connect to it can run code."""
    hang_seconds: float = 20.0
    """How long an actor's environment may take for one step before the actor is started again."""

    def __post_init__(self) -> None:
        for name, least in (
            ("actors", 1),
            ("actors_per_process", 1),
            ("evaluators", 1),
            ("inference_servers", 0),
            ("learner_hosts", 1),
        ):
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
            if name not in known:
                raise RequestError(f"a program has no setting {name}; it has {', '.join(known)}.")
        return cls(**values)
