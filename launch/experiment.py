"""The experiment: the full specification of a run, whatever it is launched on."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from ..agents.bounds import MOST, MOST_STEPS, Above, AllBounds, check, show
from ..agents.programs.placement import Partition
from .callbacks import Callback
from .callbacks import check as check_callbacks
from .clock import ACTOR_STEPS, LEARNER_STEPS, StepCount
from .errors import RequestError

if TYPE_CHECKING:
    from ..agents.builder import Builder
    from ..agents.replay.offline.dataset import Dataset
    from ..environments import EnvironmentSpec, Vector


Flags = Mapping[str, str]
"""Of the command line, by the field that they set."""
DEVICES = ("auto", "cpu", "gpu", "tpu")
ACTOR_DEVICES = (*DEVICES, "mesh")
"""The devices that an actor or a learner may be told to compute on."""
OF_ONE_PROCESS = (
    "is that of a policy in the learner's process: take --launch one-process, or between processes "
    "--inference-servers, --inference-mesh and --inference-schedule."
)
"""The reason for which a mesh of the policy's own is refused, after its name."""
_OF = {
    "environment_factory": " of seed, num_envs and evaluation: "
    "`return environments.make(ID, seed=seed, num_envs=num_envs)`",
    "network_factory": "",
}
"""Hints for what is no function, by field: its arguments, and what it may return."""


class EnvironmentFactory(Protocol):
    """Makes environments. The seed is used: equal seeds give equal episodes."""

    def __call__(self, *, seed: int, num_envs: int, evaluation: bool) -> Vector: ...


@dataclasses.dataclass(frozen=True)
class Evaluation:
    """The schedule of evaluations, which have environments and a policy of their own."""

    every: int | None = None
    """Steps between evaluations, of those that the budget counts; None: a tenth of it."""
    episodes: int = 10
    """Episodes of each evaluation on the way."""
    final_episodes: int = 20
    """Episodes of the evaluation at the end."""
    target_return: float | None = None
    """Mean return that the final evaluation must reach, else the run failed; None: any will do."""
    stop_at_target: bool = False
    """True if the first evaluation with a mean of at least `target_return` ends the run."""
    num_envs: int = 10
    """Environments stepped together in evaluations, at most."""

    bounds: ClassVar[AllBounds] = {
        "every": (1, MOST),
        "episodes": (1, 1_000_000),
        "final_episodes": (1, 1_000_000),
        "target_return": (-1e12, 1e12),
        "num_envs": (1, 4096),
    }
    flags: ClassVar[Flags] = {
        "every": "--evaluate-every",
        "episodes": "--evaluation-episodes",
        "final_episodes": "--final-evaluation-episodes",
        "target_return": "--target",
        "stop_at_target": "--stop-at-target",
    }

    def __post_init__(self):
        check(self, RequestError)
        if self.stop_at_target and self.target_return is None:
            raise RequestError(
                "the run was to stop at its target return, but has none; give one (target_return, "
                "or --target)."
            )


@dataclasses.dataclass(frozen=True)
class Checkpointing:
    """The schedule of checkpoints. A run also saves one at its end and when stopped."""

    every_seconds: float = 60.0
    """Seconds between checkpoints."""
    every_steps: int | None = None
    """Steps between checkpoints, of those that the budget counts, besides; None: only the seconds
    count."""
    keep: int = 2
    """Newest checkpoints kept."""
    replay: str = "auto"
    """When checkpoints hold the replay: always, never, or auto: where it takes at most 256 MiB.
    Without it a resumed run fills an empty replay before it learns on."""
    copies: str | None = None
    """Address where copies of all that are kept go, such as s3://bucket/runs/mine: for hosts that
    do not see the run's directory; None: nowhere."""

    bounds: ClassVar[AllBounds] = {
        "every_seconds": Above(0.0, 1e8),
        "every_steps": (1, MOST),
        "keep": (1, 10_000),
    }
    flags: ClassVar[Flags] = {
        "every_seconds": "--checkpoint-every",
        "replay": "--checkpoint-replay",
        "copies": "--checkpoints",
    }

    def __post_init__(self):
        check(self, RequestError)
        if self.replay not in ("auto", "always", "never"):
            raise RequestError(
                f"checkpointing of the replay is {self.replay!r}; it must be auto, always or never "
                "(--checkpoint-replay)."
            )


@dataclasses.dataclass(frozen=True)
class Experiment:
    """One agent learning one environment, from one seed, within one budget."""

    builder: Builder
    """The agent."""
    environment_factory: EnvironmentFactory
    env: str
    """Name of the environment, as the run's files say it."""
    num_actor_steps: int | None = None
    """Budget: actions taken in training, over all environments; None: of learning from data."""
    seed: int = 0
    """The number that every random event follows from (see `seeds`)."""
    network_factory: Callable[[EnvironmentSpec], Any] | None = None
    """Networks in place of the builder's own."""
    evaluation: Evaluation = Evaluation()
    checkpointing: Checkpointing = Checkpointing()
    partition: Partition | None = None
    """None: the learner runs on one device."""
    data: str | os.PathLike[str] | Dataset | None = None
    """The data to learn from where nobody acts, or besides (`Builder.mixes_data`): a source (see
    `data.load`) or a dataset."""
    num_learner_steps: int | None = None
    """Budget of learning from data: gradient steps."""
    actor_device: str = "auto"
    """On what actors and evaluators compute: cpu, gpu or tpu; auto: in one process what is
    quickest, the host where there are several; mesh: in one process the learner's."""
    learner_device: str = "auto"
    """On what the learner computes: cpu, gpu or tpu; auto: what is quickest."""
    sampler_partition: Partition | None = None
    """In one process a mesh and tactics of the policy's own, for actors and evaluators. It is given
    the learner's parameters shard by shard, on devices besides the learner's where jax has enough
    of them; None: as `actor_device` says."""
    callbacks: Sequence[Callback] = ()
    """Told of metrics, evaluations and checkpoints, in the process that begins the run."""

    bounds: ClassVar[AllBounds] = {
        "num_actor_steps": (1, MOST),
        "num_learner_steps": (1, MOST_STEPS),
        "seed": (0, 2**63 - 1),
    }
    flags: ClassVar[Flags] = {
        "env": "--env",
        "num_actor_steps": "--steps",
        "num_learner_steps": "--steps",
        "seed": "--seed",
    }

    def __post_init__(self):
        from ..agents.builder import Builder

        for name, kind in (
            ("builder", Builder),
            ("evaluation", Evaluation),
            ("checkpointing", Checkpointing),
            ("partition", Partition | None),
            ("sampler_partition", Partition | None),
        ):
            value = getattr(self, name)
            if not isinstance(value, kind):
                called = getattr(kind, "__name__", "launch.Partition or None")
                raise RequestError(f"{name} is {show(value)}; it must be a {called}.")
        for name in ("environment_factory", "network_factory"):
            value = getattr(self, name)
            given = callable(value) and not hasattr(value, "unwrapped")  # A class of Gymnasium's.
            if not (given or (name == "network_factory" and value is None)):
                raise RequestError(f"{name} is {show(value)}; it must be a function{_OF[name]}.")
        check(self, RequestError)
        for who in ("actor", "learner"):
            names = ACTOR_DEVICES if who == "actor" else DEVICES
            if (name := getattr(self, f"{who}_device")) not in names:
                raise RequestError(
                    f"the {who}'s device is {show(name)}; it must be one of {', '.join(names)} "
                    f"(--{who}-device)."
                )
        if self.actor_device == "mesh" and self.partition is None:
            raise RequestError(
                "--actor-device mesh is the mesh of the learner, which has none; give it one with "
                "--mesh and --schedule."
            )
        if self.sampler_partition is not None and self.actor_device != "auto":
            raise RequestError(
                f"--actor-device {self.actor_device} was given beside --sampler-mesh "
                f"{self.sampler_partition.mesh}, over which the policy is computed; leave one out."
            )
        check_callbacks(self.callbacks)
        budgets = ("num_actor_steps", "num_learner_steps")
        due, other = budgets if self.acts else reversed(budgets)
        if getattr(self, due) is None or getattr(self, other) is not None:
            what = "an agent that acts" if self.acts else "learning from data"
            if self.data is None:
                what = "an experiment without data"
            raise RequestError(f"{what} has a budget in {due}, and in nothing else.")
        fused = self.builder.steps_per_dispatch
        if not self.acts and self.budget % fused:
            below = self.budget - self.budget % fused or fused
            raise RequestError(
                f"a budget of {self.budget} gradient steps is no multiple of the {fused} of a "
                f"dispatch: take --steps {below} or {below + fused}, or another "
                "--config.steps_per_dispatch."
            )

    def require_data(self) -> None:
        """Raises RequestError where the agent learns from data, and there is none."""
        if (self.builder.needs_data or self.builder.mixes_data) and self.data is None:
            alone = "" if self.builder.mixes_data else " alone"
            if str(self.env).startswith("tokens:"):
                raise RequestError(
                    f"{self.builder.name} learns from data{alone}, of which tasks of text have "
                    "none; `troupe train grpo` imitates their solutions in as many gradient steps "
                    "as --config.supervised_steps says."
                )
            raise RequestError(
                f"{self.builder.name} learns from data{alone}; give it some with --data: the file "
                "of a recording (`troupe record`), the directory of a run, or a Minari dataset."
            )

    def make_networks(self, spec: EnvironmentSpec) -> Any:
        """The networks of the builder, or of the experiment's own factory.

        Raises:
          RequestError: if the agent cannot drive the environment, naming agents that can; or if the
            config's own torso cannot be.
        """
        from .mistakes import Mistake, called  # With jax, which requests do not need.

        try:
            self.builder.require_masks_honoured(spec)
            if self.network_factory is None:
                self._check_torso(spec)
                return called("make_networks", self.builder.make_networks, spec)
        except Mistake:
            raise
        except ValueError as error:
            from ..agents.catalogue import driving

            own = self.builder.name.split("+")  # With its wrappers.
            able = [name for name in driving(spec) if name not in own]
            hint = f" Agents that can: {', '.join(able)}." if able else ""
            raise RequestError(f"{error}{hint}") from error
        return called("the network_factory", self.network_factory, spec)

    def _check_torso(self, spec: EnvironmentSpec) -> None:
        """Traces the torso of the user's own that the config names, if it names one.

        Raises:
          Mistake: if it cannot be found, raises anything, or gives no features.
        """
        from ..agents.networks import own
        from .mistakes import Mistake, attempt, describe

        torso = own.named(self.builder.config)
        if torso is None:
            return

        def trace() -> None:
            try:
                own.check(torso, spec.observations)
            except own.TorsoError as error:
                raise Mistake(f"--config.{error}") from error

        hint = f"It sees observations [B, ...] of {describe(spec.observations)}."
        attempt(f"--config.torso {torso} cannot be traced", trace, hint=hint)

    def make_environment(
        self, *, seed: int, num_envs: int, evaluation: bool, **options: Any
    ) -> Vector:
        """The environments that the factory makes, which may take further options.

        Of environments of several agents there are as many as have `num_envs` agents or more.

        Raises:
          RequestError: if it makes something else, or ends the process.
        """
        from .mistakes import called

        name, factory = "the environment_factory", self.environment_factory
        try:
            made = called(
                name, factory, seed=seed, num_envs=num_envs, evaluation=evaluation, **options
            )
        except SystemExit as end:
            raise RequestError(f"{name} called sys.exit({end.code!r}).") from end
        found = getattr(made, "num_envs", None)
        is_vector = callable(getattr(made, "observation_spec", None))
        agents = getattr(made, "num_agents", 1)
        # Agents of one environment are streams that cannot be had without one another.
        if found != -(-num_envs // agents) * agents or not is_vector:
            what = f"a vector of {found}" if found and is_vector else show(made)
            raise RequestError(
                f"{name} made {what}; it must make an environments.Vector of the {num_envs} asked "
                "for: environments.make(ID, seed=seed, num_envs=num_envs), or of your own "
                "environments.Vector([environments.GymnasiumEnvironment(one, seed=...), ...])."
            )
        return made

    @property
    def acts(self) -> bool:
        """True if anybody acts in training: there is no data, or it is for the agent to mix in."""
        return self.data is None or self.builder.mixes_data

    @property
    def spent_at(self) -> int:
        """Steps of the clock at which the budget is spent: another of all environments that step
        together would exceed it."""
        together = self.builder.num_envs if self.acts else 1
        return max(1, self.budget - together + 1)

    @property
    def clock(self) -> StepCount:
        """The clock that the budget counts."""
        return ACTOR_STEPS if self.acts else LEARNER_STEPS

    @property
    def budget(self) -> int:
        """Steps of the clock."""
        steps = self.num_actor_steps if self.acts else self.num_learner_steps
        assert steps is not None
        return steps

    @property
    def evaluation_period(self) -> int:
        """Steps of the clock between evaluations."""
        return self.evaluation.every or max(1, self.budget // 10)

    def identity(self) -> Mapping[str, Any]:
        """Identifies the run that a checkpoint is of, as values that JSON can hold.

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


def require_experiment(value: Any) -> None:
    """Raises RequestError where something else than an experiment was given."""
    if not isinstance(value, Experiment):
        raise RequestError(
            f"what is run is a launch.Experiment(builder, environment_factory, env, "
            f"num_actor_steps), not {show(value)}."
        )


def require_no_sampler(experiment: Experiment) -> None:
    """Raises RequestError where a policy has a mesh of its own and the launch knows none."""
    if experiment.sampler_partition is not None:
        raise RequestError(f"--sampler-mesh {experiment.sampler_partition.mesh} {OF_ONE_PROCESS}")


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
        # A field that was not there yet has done what its default does.
        if name in theirs and ours.get(name) != theirs[name]:
            raise RequestError(
                f"{where} was written by a run with config.{name} {theirs[name]!r}; this one "
                f"has {ours.get(name)!r}."
            )


def _plain(value: Any) -> Any:
    """Returns a value as JSON gives it back: tuples as lists, unknown types by name."""
    if isinstance(value, tuple | list):
        return [_plain(item) for item in value]
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if value is None or isinstance(value, bool | int | float | str):
        return value
    return getattr(value, "__qualname__", repr(value))
