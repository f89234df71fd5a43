"""A run as values that JSON can hold: what the command line asks for and `config.json` keeps."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ..errors import RequestError
from ..experiment import OF_ONE_PROCESS, Checkpointing, Evaluation, Experiment
from ..logging.wandb import WandbLogger
from ..roles import KINDS, choose_engine
from . import fields, origins, stored

if TYPE_CHECKING:
    from ...agents import Builder
    from ...environments import Vector


_SEVERAL_AGENTS = "pettingzoo:"
"""Prefix of ids of environments that may have several agents."""
_TEXT = "tokens:"
"""Prefix of ids of tasks of text, which hold prompts out for evaluations."""


@dataclasses.dataclass(frozen=True)
class Recipe:
    """The request of `troupe train`, defaults and tuned settings filled in."""

    agent: str
    env: str
    config: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    """Fields of the agent's config that differ from their defaults, values or texts."""
    seed: int = 0
    steps: int = 100_000
    """Budget: actor steps, or gradient steps where there is data."""
    data: str | None = None
    """Source of what is learned from (see `data.sources`); None: the agent acts."""
    environment: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    """Options of `environments.make`, in training and in evaluation."""
    training_environment: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    """Further options of `environments.make` in training only."""
    evaluation: Evaluation = dataclasses.field(default_factory=Evaluation)
    checkpointing: Checkpointing = dataclasses.field(default_factory=Checkpointing)
    mesh: str | None = None
    schedule: str | None = None
    recompute: str | None = None
    """"auto": activations are computed again where memory does not suffice."""
    memory: float | None = None
    """The share of a device's memory that the step may need."""
    placement: str | None = None
    """"auto": axes and sums are laid onto the hierarchy of links."""
    device: str | None = None
    """The device of the plan, a preset or a calibration's file; None: the devices at hand."""
    plan: str | None = None
    """File of a plan made before, in place of the mesh and all after it."""
    actor_device: str = "auto"
    """On what actors compute: auto, cpu, gpu or tpu."""
    learner_device: str = "auto"
    """On what the learner computes."""
    sampler_mesh: str | None = None
    """Devices of the policy's own."""
    sampler_schedule: str | None = None
    """How they share it."""
    wandb: str | None = None
    """Project of Weights & Biases to which the run is logged too."""
    origin: Mapping[str, Any] | None = None
    """Fields of the `transfer.Origin` whose weights it begins with; None: its own."""
    launch: str = "one-process"
    """Kind of launch, one of `roles.KINDS`."""
    roles: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    """Fields of `roles.Roles`, where the launch is not in one process."""
    engine: str | None = None
    """One of `roles.ENGINES`, chosen by `roles.choose_engine` where None is given; in one
    process it stays None."""
    folders: Mapping[str, str] = dataclasses.field(default_factory=dict)
    """By module of the user's own, that of the agent, the environment or a field of the config: the
    folder that it was found in. One that is not here may be in the current directory."""

    def __post_init__(self):
        engine = choose_engine(self.launch, self.roles, self.engine)
        object.__setattr__(self, "engine", engine)  # A run goes on with the one it was begun with.
        if self.sampler_mesh is not None and self.launch != KINDS[0]:
            raise RequestError(f"--sampler-mesh {self.sampler_mesh} {OF_ONE_PROCESS}")

    def builder(self) -> Builder:
        """The agent's, with the config.

        Raises:
          ValueError: if the agent or a field of its config cannot be.
        """
        builder_class = origins.find_builder(self.agent, self.folders)
        config = {**self._of_agents(builder_class), **self.config}
        for name in origins.names_in(config):
            origins.reach(name, self.folders)
        return builder_class(fields.make(builder_class.config_class, config))

    def _of_agents(self, builder_class: type[Builder]) -> dict[str, Any]:
        """The fields of a config that go by the number of agents, where they are not asked for:
        in how many streams an actor acts, of which the default counts environments, and each of
        several agents is one; and, of agents that share no parameters, how many there are."""
        if not self.env.startswith(_SEVERAL_AGENTS):
            return {}
        from ... import environments

        origins.reach(self.env, self.folders)
        agents = environments.multiagent.num_agents(self.env, self.environment)
        known = fields.fields(builder_class.config_class)
        found = {"num_agents": agents} if "num_agents" in known else {}
        acts = self.data is None or builder_class.mixes_data
        return {**found, "num_envs": agents * known["num_envs"].default} if acts else found

    def experiment(self) -> Experiment:
        """The experiment.

        Raises:
          ValueError: if an agent, environment, field, mesh or schedule cannot be.
        """
        builder = self.builder()
        acts = self.data is None or builder.mixes_data
        return Experiment(
            builder=builder,
            environment_factory=self.make_environment,
            env=self.env,
            num_actor_steps=self.steps if acts else None,
            num_learner_steps=None if acts else self.steps,
            data=self.data,
            seed=self.seed,
            evaluation=self.evaluation,
            checkpointing=self.checkpointing,
            partition=stored.partition(**{n: getattr(self, n) for n in stored.PLACEMENT}),
            actor_device=self.actor_device,
            learner_device=self.learner_device,
            sampler_partition=stored.sampler(self.sampler_mesh, self.sampler_schedule),
            callbacks=() if self.wandb is None else (WandbLogger(self.wandb),),
        )

    def alone(self) -> Experiment:
        """The experiment on one device, without data and with nobody told: to judge its policy."""
        return dataclasses.replace(self, **stored.ALONE, wandb=None).experiment()

    def make_environment(
        self, *, seed: int, num_envs: int, evaluation: bool, render_mode: str | None = None
    ) -> Vector:
        """Environments of training or of evaluation."""
        from ... import environments

        builder_class = origins.find_builder(self.agent, self.folders)
        origins.reach(self.env, self.folders)
        options = {"actions": builder_class.actions, **self.environment}
        if not evaluation:
            options |= self.training_environment
        if self.env.startswith(_TEXT):
            options.setdefault("held_out", evaluation)
        if render_mode is not None:
            options["render_mode"] = render_mode
        try:
            return environments.make(self.env, seed=seed, num_envs=num_envs, **options)
        except TypeError as error:
            raise RequestError(f"{self.env}: {error}.") from error

    def to_json(self) -> dict[str, Any]:
        """All of it, with every field of the agent's config."""
        config = self.experiment().identity()["config"]
        folders = origins.folders_of(self.agent, self.env, *origins.names_in(config))
        return {**dataclasses.asdict(self), "config": config, "folders": folders}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Recipe:
        """The inverse of `to_json`.

        Raises:
          RequestError: if they are not of a recipe.
        """
        return stored.from_json(
            cls,
            values,
            "it was not started by `troupe train`; resume it with "
            "troupe.launch.run(experiment, out, resume=True)",
        )
