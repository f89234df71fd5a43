"""The table of what is checked of an agent, in the order in which one thing builds on another."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import math
from collections.abc import Callable, Iterator
from typing import Any, Literal

import jax

from ... import environments
from ...agents.programs import dispatch
from ...agents.replay import ReplaySpec
from ...environments.specs import describe as describe_spec
from .. import planning
from ..errors import RequestError
from ..experiment import Experiment
from ..factory import ComponentFactory
from ..local import components
from ..mistakes import Mistake, attempt, compare
from ..remarks import remarks
from ..validation import policies, updates
from . import short_run

Status = Literal["ok", "failed", "left out"]


@dataclasses.dataclass(frozen=True)
class Finding:
    """The outcome of one check."""

    name: str
    status: Status
    text: str
    """The facts seen; of a failure, the mistake and what to do, in one line."""


class Subject:
    """The agent that is checked; its parts are made once, when they are first looked at."""

    def __init__(self, experiment: Experiment):
        self.experiment = experiment
        self.stack = contextlib.ExitStack()

    @functools.cached_property
    def described(self) -> tuple[environments.EnvironmentSpec, tuple[str, ...]]:
        """The environment's specs, and remarks on it."""
        with components.make_environment(self.experiment, 0) as environment:
            return environments.make_spec(environment), remarks(self.experiment, environment)

    @property
    def spec(self) -> environments.EnvironmentSpec:
        return self.described[0]

    @functools.cached_property
    def factory(self) -> ComponentFactory:
        return ComponentFactory(self.experiment, self.spec, self.experiment.builder.num_envs)

    @functools.cached_property
    def networks(self) -> Any:
        return attempt("make_networks fails", self.experiment.make_networks, self.spec)

    @functools.cached_property
    def exploring(self) -> Any:
        make = self.experiment.builder.make_policy
        num_envs = self.experiment.builder.num_envs
        return attempt(
            "make_policy fails", lambda: make(self.networks, self.spec, num_streams=num_envs)
        )

    @functools.cached_property
    def evaluation(self) -> Any:
        make = self.experiment.builder.make_policy
        return attempt("make_policy fails", lambda: make(self.networks, self.spec, evaluation=True))

    @functools.cached_property
    def update(self) -> Any:
        make = self.experiment.builder.make_update
        return attempt("make_update fails", make, self.networks, self.spec)

    @functools.cached_property
    def traced(self) -> updates.TracedUpdate:
        builder = self.experiment.builder
        replay = attempt(
            "make_replay_tables fails",
            lambda: builder.make_replay_tables(
                self.spec, self.exploring, num_envs=builder.num_envs
            ),
        )
        traced = updates.check(self.factory, self.networks, replay.sample_shapes())
        if traced is None:
            raise NotImplementedError
        return traced

    @functools.cached_property
    def short(self) -> tuple[Experiment, int]:
        experiment = self.experiment
        if not self.has_devices:
            experiment = dataclasses.replace(experiment, partition=None)
        return short_run.shortened(experiment, self.spec)

    @property
    def has_devices(self) -> bool:
        """True if this process has those of the mesh: a mesh can be asked for elsewhere."""
        partition = self.experiment.partition
        return partition is None or partition.mesh.size <= len(jax.devices())

    @functools.cached_property
    def trial(self) -> short_run.ShortRun:
        return self.make_trial(0)

    @functools.cached_property
    def other(self) -> short_run.ShortRun:
        return self.make_trial(1).run_to(self.trial.loop.steps)

    def make_trial(self, seed: int) -> short_run.ShortRun:
        experiment = dataclasses.replace(self.short[0], seed=seed)
        trial = attempt("the parts of a run cannot be made", short_run.ShortRun, experiment)
        return self.stack.enter_context(trial)


def _environment(subject: Subject) -> str:
    spec, said = subject.described
    taken = f"{describe_spec(spec.observations)} in, {describe_spec(spec.actions)} out"
    return "; warning: ".join([taken, *said])


def _networks(subject: Subject) -> str:
    return type(subject.networks).__name__


def _replay(subject: Subject) -> str:
    spec = attempt(
        "make_replay_spec fails", subject.experiment.builder.make_replay_spec, subject.spec
    )
    if not isinstance(spec, ReplaySpec):
        raise Mistake(
            f"make_replay_spec returns a {type(spec).__name__}; return a replay.ReplaySpec."
        )
    pace = spec.samples_per_insert
    drawn = "" if pace is None else f", {pace:g} drawn for each"
    return f"{type(spec.item).__name__} in batches of {spec.batch_size:,}{drawn}"


def _update(subject: Subject) -> str:
    leaves = jax.tree.leaves(subject.traced.state)
    numbers = sum(math.prod(leaf.shape) for leaf in leaves)
    metrics = ", ".join(subject.traced.metrics) or "no metrics"
    return f"a state of {len(leaves)} arrays, {numbers:,} numbers; {metrics}"


def _pure(subject: Subject) -> str:
    updates.check_pure(subject.update, subject.traced)
    return "traced twice it is one program; no array twice in its state"


def _fused(subject: Subject) -> str:
    """K steps as one program."""
    update, traced = subject.update, subject.traced
    k = subject.experiment.builder.steps_per_dispatch
    own = update.steps is not None
    what = f"Update.steps({k})" if own else f"{k} of Update.step as one program"
    batches = jax.tree.map(lambda x: jax.ShapeDtypeStruct((k, *x.shape), x.dtype), traced.sample)

    def run(state: Any, samples: Any) -> Any:
        fused = update.steps(k) if own else dispatch.fuse(update.step, k)
        return fused(state, samples)

    state, output = attempt(
        f"{what} cannot be traced", lambda: jax.eval_shape(run, traced.state, batches)
    )
    compare(f"the state of {what}", state, traced.state, "It must be that of K of Update.step.")
    metrics = {
        name: jax.ShapeDtypeStruct((k, *x.shape), x.dtype) for name, x in traced.metrics.items()
    }
    compare(f"the metrics of {what}", output.metrics, metrics, "They are those of K steps, [K].")
    return f"{k} gradient steps a dispatch{', by Update.steps' if own else ''}"


def _exploring(subject: Subject) -> str:
    params = subject.traced.variables["policy"]
    return policies.trace(subject.exploring, params, subject.spec, "exploring")


def _evaluation(subject: Subject) -> str:
    params = subject.traced.variables["policy"]
    return policies.trace(subject.evaluation, params, subject.spec, "evaluation")


def _mesh(subject: Subject) -> str:
    partition = subject.experiment.partition
    if partition is not None:
        planning.require_sharded(partition)
        with planning.refused(subject.experiment, subject.spec):
            planning.plan(subject.experiment, subject.spec)
    where = (
        "" if subject.has_devices else f"; jax has {len(jax.devices())} here, so what runs is not"
    )
    return "" if partition is None else f"the step can be spread over {partition.mesh}{where}"


def _actions(subject: Subject) -> str:
    return short_run.check_actions(subject.trial)


def _learning(subject: Subject) -> str:
    return short_run.check_learns(subject.trial, subject.short[1])


def _same_step(subject: Subject) -> str:
    return short_run.check_same_step(subject.trial)


def _seeds(subject: Subject) -> str:
    trial = subject.trial
    # As far as the first run came: how far that was may have been a matter of time.
    first, steps = trial.policy(), trial.loop.steps
    second = trial.rewind().run_to(steps).policy()
    return short_run.check_seeds(first, second, subject.other.policy())


def _restored(subject: Subject) -> str:
    return short_run.check_restored(subject.trial, subject.other)


def _processes(subject: Subject) -> str:
    subject.factory.check_replay()
    return "the replay can be shared by processes"


@dataclasses.dataclass(frozen=True)
class Check:
    """A row of the table."""

    name: str
    run: Callable[[Subject], str]
    needs: tuple[str, ...] = ()


TABLE = (
    Check("environment", _environment),
    Check("networks", _networks, ("environment",)),
    Check("replay", _replay, ("environment",)),
    Check("update", _update, ("networks", "replay")),
    Check("purity", _pure, ("update",)),
    Check("dispatch", _fused, ("update",)),
    Check("exploring policy", _exploring, ("update",)),
    Check("evaluation policy", _evaluation, ("update",)),
    Check("mesh", _mesh, ("update",)),
    Check("processes", _processes, ("update",)),
    Check(
        "actions",
        _actions,
        ("exploring policy", "evaluation policy", "purity", "dispatch", "mesh"),
    ),
    Check("short run", _learning, ("actions",)),
    Check("seeds", _seeds, ("short run",)),
    Check("save and restore", _restored, ("seeds",)),
    Check("same step", _same_step, ("seeds",)),
)


def check(experiment: Experiment) -> Iterator[Finding]:
    """Checks an agent on an environment, from what is quick to what takes seconds.

    A check that needs what another found wrong is left out.

    Args:
      experiment: its budget, evaluation and checkpointing do not matter.

    Raises:
      ValueError: if there is no such environment or data, or none where data is mixed in.
    """
    subject = Subject(experiment)
    unknown: set[str] = set()
    # An environment or data that there is not is no finding.
    spec = subject.spec
    if experiment.builder.mixes_data:
        experiment.require_data()
    if experiment.data is not None:
        from ..data import sources

        # Read once, for all the short runs.
        data = sources.load(experiment.data, spec)
        subject.experiment = dataclasses.replace(experiment, data=data)
    with subject.stack:
        for row in TABLE:
            if row.name == "mesh" and experiment.partition is None:
                continue
            finding = _run(row, subject, unknown)
            if finding.status != "ok":
                unknown.add(row.name)
            yield finding


def _run(row: Check, subject: Subject, unknown: set[str]) -> Finding:
    needed = next((name for name in row.needs if name in unknown), None)
    if needed is not None:
        return Finding(row.name, "left out", f"it needs: {needed}")
    try:
        return Finding(row.name, "ok", row.run(subject))
    except NotImplementedError as error:
        return Finding(row.name, "left out", str(error) or "the builder has a learner of its own")
    except (RequestError, ValueError) as error:
        return Finding(row.name, "failed", " ".join(str(error).split()))
