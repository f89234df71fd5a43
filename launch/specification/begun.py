"""A run that was begun in Python, as its `config.json` tells of it: enough to begin it again."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from typing import Any

from ..errors import RequestError
from ..experiment import Checkpointing, Evaluation, Experiment, Partition, check_identity
from ..files.directory import RunDirectory
from . import fields, imports, origins, stored
from .recipe import Recipe

_PASS = (
    "pass it: launch.resume(run, experiment), launch.evaluate(run, experiment=experiment) and the "
    "like"
)


@dataclasses.dataclass(frozen=True)
class Begun:
    """The request of a run in Python. Its first fields are those of a `Recipe`."""

    agent: str
    """Name of the builder."""
    env: str
    config: Mapping[str, Any]
    seed: int
    steps: int
    """Budget: actor steps, or gradient steps where there is data."""
    data: str | None
    """Source of what is learned from; None: the agent acts, or a `Dataset` was given."""
    evaluation: Evaluation
    checkpointing: Checkpointing
    mesh: str | None
    schedule: str | None
    """None until it is given to resume the run: a `Partition` holds no such words."""
    launch: str
    roles: Mapping[str, Any]
    python: Mapping[str, Any]
    """The places that its parts are imported from (`imports.where`), by field of the experiment;
    null: they cannot be."""
    recompute: str | None = None
    memory: float | None = None
    placement: str | None = None
    device: str | None = None
    plan: str | None = None
    """Of a `Partition`, as of its mesh and its schedule."""
    actor_device: str = "auto"
    learner_device: str = "auto"
    sampler_mesh: str | None = None
    sampler_schedule: str | None = None
    """Of the `Partition` of the policy, as of that of the learner."""
    engine: str | None = None
    """One of `roles.ENGINES`; None: it was in one process."""
    folders: Mapping[str, str] = dataclasses.field(default_factory=dict)
    """By module that a field of the config names: the folder that it was found in."""

    def experiment(self) -> Experiment:
        """The experiment.

        Raises:
          RequestError: if a part of it cannot be imported, or it is not as it was.
        """
        parts = {name: self._part(name) for name in self.python if name != "builder"}
        builder_class = self._part("builder")
        for name in origins.names_in(self.config):
            origins.reach(name, self.folders)
        acts = self.data is None or builder_class.mixes_data
        made = Experiment(
            builder=builder_class(fields.make(builder_class.config_class, self.config)),
            env=self.env,
            num_actor_steps=self.steps if acts else None,
            num_learner_steps=None if acts else self.steps,
            data=self.data,
            seed=self.seed,
            evaluation=self.evaluation,
            checkpointing=self.checkpointing,
            partition=self._partition(),
            actor_device=self.actor_device,
            learner_device=self.learner_device,
            sampler_partition=self._sampler(),
            **parts,
        )
        asked = {name: getattr(self, name) for name in ("agent", "env", "seed", "config")}
        check_identity(asked, made.identity(), "its config.json")
        return made

    def alone(self) -> Experiment:
        """The experiment on one device and without data: to judge its policy.

        Raises:
          RequestError: as of `experiment`.
        """
        python = {name: place for name, place in self.python.items() if name != "data"}
        return dataclasses.replace(self, **stored.ALONE, python=python).experiment()

    def _part(self, name: str) -> Any:
        place = self.python[name]
        if place is None:
            raise RequestError(
                f"the run was begun in Python with a {name} that cannot be imported (a lambda, "
                "with arguments of its own, or of a script without a main guard), so the "
                f"experiment is not known; {_PASS}."
            )
        return imports.find(place)

    def _partition(self) -> Partition | None:
        if self.mesh is not None and self.schedule is None and self.plan is None:
            raise RequestError(
                f"the run was begun in Python over the mesh {self.mesh}; give --mesh and "
                f"--schedule, or where there is an experiment {_PASS}."
            )
        words = {name: getattr(self, name) for name in stored.PLACEMENT}
        return stored.partition(**(words if self.plan is None else {"plan": self.plan}))

    def _sampler(self) -> Partition | None:
        if self.sampler_mesh is not None and self.sampler_schedule is None:
            raise RequestError(
                f"the run was begun in Python with a policy over the mesh {self.sampler_mesh}; "
                f"give --sampler-mesh and --sampler-schedule, or where there is an experiment "
                f"{_PASS}."
            )
        return stored.sampler(self.sampler_mesh, self.sampler_schedule)

    def to_json(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Begun:
        """The inverse of `to_json`.

        Raises:
          RequestError: if they are not of such a run.
        """
        return stored.from_json(cls, values, f"where there is an experiment {_PASS}")


def begun(
    experiment: Experiment, launch: str, roles: Mapping[str, Any], engine: str | None = None
) -> Begun:
    """Returns a run in Python as it is remembered.

    Args:
      experiment: what is run.
      launch: its kind.
      roles: fields of `roles.Roles` that are not as by default.
      engine: of the launch; None: it is in one process.
    """
    builder, networks = experiment.builder, experiment.network_factory
    python = {
        "builder": imports.where(type(builder)) if _is_made_of_its_config(builder) else None,
        "environment_factory": imports.where(experiment.environment_factory),
        **({} if networks is None else {"network_factory": imports.where(networks)}),
    }
    data = experiment.data
    if data is not None and not isinstance(data, str | os.PathLike):
        python["data"] = data = None  # A dataset was made there; where, nobody knows.
    mesh, sampler = (
        None if one is None else str(one.mesh)
        for one in (experiment.partition, experiment.sampler_partition)
    )
    identity = experiment.identity()
    return Begun(
        **identity,
        steps=int(experiment.budget),
        data=None if data is None else os.fspath(data),
        evaluation=experiment.evaluation,
        checkpointing=experiment.checkpointing,
        mesh=mesh,
        schedule=None,
        launch=launch,
        roles=roles,
        python=python,
        actor_device=experiment.actor_device,
        learner_device=experiment.learner_device,
        sampler_mesh=sampler,
        engine=engine,
        folders=origins.folders_of(*origins.names_in(identity["config"])),
    )


def asked_of(directory: RunDirectory) -> Recipe | Begun:
    """Returns what a run was asked to be, by whomever.

    Raises:
      RequestError: if this is no run's directory, or it does not say all.
    """
    values = directory.read_config()
    return Begun.from_json(values) if "python" in values else Recipe.from_json(values)


def _is_made_of_its_config(builder: Any) -> bool:
    """True if a builder's class and its config say all of it."""
    try:
        return bool(vars(type(builder)(builder.config)) == vars(builder))
    except Exception:  # It takes more, or holds what cannot be compared.
        return False
