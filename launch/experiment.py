"""The experiment: everything that says what a run is, whatever it is launched on."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Protocol

from . import seeds
from .errors import RequestError

if TYPE_CHECKING:
    from ..agents.builder import Builder
    from ..environments import EnvironmentSpec, Vector


def _at_least_one(config: Any, name: str) -> None:
    value = getattr(config, name)
    if value is not None and value < 1:
        raise RequestError(f"{name} is {value}; it must be at least 1.")


class EnvironmentFactory(Protocol):
    """Makes environments. The seed is used: equal seeds give equal episodes."""

    def __call__(self, *, seed: int, num_envs: int, evaluation: bool) -> Vector: ...


@dataclasses.dataclass(frozen=True)
class Evaluation:
    """When and how the policy is judged: on environments of its own, with a policy of its own."""

    every: int | None = None
    """Actor steps between evaluations; None: a tenth of the budget."""
    episodes: int = 10
    """Episodes of each evaluation on the way."""
    final_episodes: int = 20
    """Episodes of the evaluation at the end."""
    target_return: float | None = None
    """Mean return that the final evaluation must reach, else the run failed; None: any will do."""
    num_envs: int = 10
    """Environments stepped together in evaluations, at most."""

    def __post_init__(self):
        for name in ("every", "episodes", "final_episodes", "num_envs"):
            _at_least_one(self, name)


@dataclasses.dataclass(frozen=True)
class Checkpointing:
    """When a run saves what it needs to go on. It always does at its end and when stopped."""

    every_seconds: float = 60.0
    """Seconds between checkpoints."""
    every_steps: int | None = None
    """Actor steps between checkpoints, besides; None: only the seconds count."""
    keep: int = 2
    """Newest checkpoints kept."""
    replay: str = "auto"
    """Whether checkpoints hold the replay: always, never, or auto: where it takes at most 256 MiB.
    Without it a resumed run fills an empty replay before it learns on."""

    def __post_init__(self):
        _at_least_one(self, "every_steps")
        _at_least_one(self, "keep")
        if not self.every_seconds > 0:
            raise RequestError(
                f"checkpointing every {self.every_seconds} seconds; it must be above 0."
            )
        if self.replay not in ("auto", "always", "never"):
            raise RequestError(
                f"checkpointing of the replay is {self.replay!r}; it must be auto, always or never."
            )


@dataclasses.dataclass(frozen=True)
class Partition:
    """How the learner's step is spread over devices."""

    mesh: Any
    """A `partitioning` mesh, over the devices of this process."""
    schedule: Any
    """Tactics of `partitioning`, in order."""


@dataclasses.dataclass(frozen=True)
class Experiment:
    """One agent learning one environment, from one seed, within one budget."""

    builder: Builder
    """The agent."""
    environment_factory: EnvironmentFactory
    env: str
    """Name of the environment, as the run's files say it."""
    num_actor_steps: int
    """Budget: actions taken in training, over all environments."""
    seed: int = 0
    """What every random event follows from (see `seeds`)."""
    network_factory: Callable[[EnvironmentSpec], Any] | None = None
    """Networks in place of the builder's own."""
    evaluation: Evaluation = Evaluation()
    checkpointing: Checkpointing = Checkpointing()
    partition: Partition | None = None
    """None: the learner runs on one device."""

    def __post_init__(self):
        _at_least_one(self, "num_actor_steps")
        seeds.check(self.seed)

    def make_networks(self, spec: EnvironmentSpec) -> Any:
        return (self.network_factory or self.builder.make_networks)(spec)

    @property
    def evaluation_period(self) -> int:
        """Actor steps between evaluations."""
        return self.evaluation.every or max(1, self.num_actor_steps // 10)

    def identity(self) -> Mapping[str, Any]:
        """Whose a checkpoint is, as values that JSON can hold.

        A run may only go on from checkpoints of the same identity; the budget, the evaluation and
        the checkpointing are no part of it.
        """
        config = self.builder.config
        fields: Mapping[str, Any] = dataclasses.asdict(config)
        return {
            "agent": self.builder.name,
            "env": self.env,
            "seed": int(self.seed),
            "config": {name: _plain(value) for name, value in fields.items()},
        }


def check_identity(found: Mapping[str, Any], expected: Mapping[str, Any], where: object) -> None:
    """Compares two identities.

    Raises:
      RequestError: if they differ, naming the first difference.
    """
    for name in ("agent", "env", "seed"):
        if found.get(name) != expected[name]:
            raise RequestError(
                f"{where} was written by a run with {name} {found.get(name)!r}; this one has "
                f"{expected[name]!r}."
            )
    ours, theirs = expected["config"], found.get("config", {})
    for name in sorted({*ours, *theirs}):
        if ours.get(name) != theirs.get(name):
            raise RequestError(
                f"{where} was written by a run with config.{name} {theirs.get(name)!r}; this one "
                f"has {ours.get(name)!r}."
            )


def _plain(value: Any) -> Any:
    """What JSON gives back for a value: tuples become lists, anything it does not know its name."""
    if isinstance(value, tuple | list):
        return [_plain(item) for item in value]
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if value is None or isinstance(value, bool | int | float | str):
        return value
    return getattr(value, "__qualname__", repr(value))
