"""The parts of an experiment, as its builder makes them: the one place for every kind of launch."""

from __future__ import annotations

import contextlib
import copy
import functools
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import jax

from ..agents.learning.managed import managed
from ..agents.replay import pace
from ..agents.replay.items import Rollouts
from . import seeds
from .errors import RequestError
from .experiment import Experiment, Partition
from .mistakes import called

if TYPE_CHECKING:
    from ..agents.interfaces import ActorCore, ManagedLearner, VariableSource
    from ..agents.replay.interface import Replay, ReplayFactory
    from ..agents.replay.items import ReplaySpec
    from ..agents.replay.offline.offline_replay import OfflineReplay
    from ..environments import EnvironmentSpec


class _Asked(RuntimeError):
    """A builder has called the factory of its replay."""


class ComponentFactory:
    """Makes the parts of one experiment for one process, each when it is asked for."""

    def __init__(self, experiment: Experiment, spec: EnvironmentSpec, num_streams: int):
        """Nothing is made yet.

        Args:
          experiment: what is run.
          spec: of one environment.
          num_streams: environments that act at once, over all actors.
        """
        self.experiment, self.spec, self.num_streams = experiment, spec, num_streams
        self.builder = experiment.builder
        if self.builder.mixes_data:
            self.builder = copy.copy(self.builder)  # The experiment's is as it was given.
            self.builder.load_data = functools.partial(_load, experiment.data)

    def __reduce__(self) -> tuple[Any, ...]:
        return ComponentFactory, (self.experiment, self.spec, self.num_streams)

    def key(self, role: str, *indices: int) -> jax.Array:
        """The key of a role (see `seeds.derive`)."""
        return jax.random.key(seeds.derive(self.experiment.seed, role, *indices))

    @functools.cached_property
    def networks(self) -> Any:
        return self.experiment.make_networks(self.spec)

    @functools.cached_property
    def policy(self) -> ActorCore:
        """The policy that explores."""
        make = self.builder.make_policy
        return called("make_policy", make, self.networks, self.spec, num_streams=self.num_streams)

    def replay(self, num_envs: int, make_replay: ReplayFactory | None = None) -> Replay:
        """The replay of this process.

        Args:
          num_envs: environments whose steps this process writes.
          make_replay: for this process's proxy of a replay that lives elsewhere; None: the
            builder's own.

        Raises:
          RequestError: if the builder makes one that lives in this process where it must not.
        """
        seed, asked = seeds.derive(self.experiment.seed, "replay"), []
        arguments: dict[str, Any] = {"num_envs": num_envs, "seed": seed}
        if make_replay is not None:

            def make_proxy(*specs: Any, **options: Any) -> Replay:
                asked.append(True)
                return make_replay(*specs, **options)

            arguments["make_replay"] = make_proxy

        def make() -> Replay:
            try:
                return self.builder.make_replay_tables(self.spec, self.policy, **arguments)
            except TypeError as error:
                if "make_replay" not in str(error):
                    raise
                raise self._cannot_cross(str(error)) from error

        called("make_replay_spec", self.builder.make_replay_spec, self.spec)
        replay: Replay = called("make_replay_tables", make)
        if make_replay is not None and not asked:
            raise self._cannot_cross(f"it makes a {type(replay).__name__} by itself")
        return replay

    def offline_replay(self, hosts: int = 1, rank: int = 0) -> OfflineReplay:
        """Returns the replay of a learner that learns from the experiment's data.

        Args:
          hosts: processes of the learner.
          rank: of this one; it draws its share of every batch.

        Raises:
          ValueError: if there is no such data, it is not of this environment, or the agent cannot
            learn from it.
        """
        from ..agents.replay.offline.offline_replay import OfflineReplay

        dataset = _load(self.experiment.data, self.spec)

        def make(*specs: Any, seed: int, **_: Any) -> Replay:
            limit = self.experiment.num_learner_steps
            share = (rank, hosts)
            return OfflineReplay(dataset, *specs, seed=seed, share=share, num_batches=limit)

        replay = self.replay(1, make)
        assert isinstance(replay, OfflineReplay)
        return replay

    def check_replay(self) -> None:
        """Raises RequestError where the replay cannot be shared by processes; none is made."""

        def ask(*specs: Any, **options: Any) -> Replay:
            raise _Asked

        def make() -> None:
            ComponentFactory(self.experiment, self.spec, self.num_streams).replay(
                self.builder.num_envs, ask
            )

        # Traced, so that no device is touched: the process that launches has no use for any.
        with contextlib.suppress(_Asked):
            jax.eval_shape(make)

    def _cannot_cross(self, reason: str) -> RequestError:
        return RequestError(
            f"the replay of {self.builder.name} lives in one process: {reason}; have the builder's "
            "make_replay_tables make it with its argument make_replay, or launch in one process."
        )

    def learner(
        self,
        replay: Replay,
        partition: Partition | None = None,
        device: jax.Device | None = None,
    ) -> ManagedLearner:
        """The learner, with all that a run asks of it.

        Args:
          replay: what it draws from.
          partition: in place of the experiment's.
          device: where it runs; None: jax's default device.
        """
        learner = called(
            "make_learner",
            self.builder.make_learner,
            self.key("learner"),
            self.networks,
            self.spec,
            called("make_dataset_iterator", self.builder.make_dataset_iterator, replay),
            replay,
            partition=partition or self.experiment.partition,
            **device_argument(device),
        )
        return managed(learner, self.builder.steps_per_dispatch)

    def trial_learner(self, samples: Iterator[Any], device: jax.Device) -> Any:
        """A learner of given batches on a device, to see how quick it is there."""
        key = self.key("learner")
        on = device_argument(device)
        return self.builder.make_learner(key, self.networks, self.spec, samples, **on)

    def trial_actor(self, device: jax.Device) -> Any:
        """An actor with the first parameters on a device, which writes nothing."""
        update = self.builder.make_update(self.networks, self.spec)
        variables = jax.jit(lambda key: update.variables(update.init(key)))(self.key("learner"))
        source = _Fixed(variables)
        num_envs = self.builder.num_envs
        return self.builder.make_actor(
            self.key("actor"),
            self.policy,
            self.spec,
            source,
            num_envs=num_envs,
            **device_argument(device),
        )

    def actor(
        self,
        key: jax.Array,
        source: VariableSource,
        replay: Replay,
        *,
        num_envs: int,
        first_stream: int = 0,
        device: jax.Device | Partition | None = None,
    ) -> Any:
        """An actor that explores.

        Args:
          key: for its randomness.
          source: of its parameters, or of actions (`InferenceSource`).
          replay: what it writes to.
          num_envs: environments in which it acts.
          first_stream: number of the first of them among those of all actors.
          device: where it computes; None: jax's default device.
        """
        adder = called("make_adder", self.builder.make_adder, replay)
        make, options = self.builder.make_actor, device_argument(device)
        parts = key, self.policy, self.spec, source, adder
        actor = called("make_actor", make, *parts, num_envs=num_envs, **options)
        if first_stream and self.policy.set_stream is not None:
            actor.set_streams(first_stream)
        return actor


class _Fixed:
    """A source of variables that never change."""

    version = 0

    def __init__(self, variables: dict[str, Any]):
        self._variables = variables

    def get_variables(self, names: Sequence[str]) -> list[Any]:
        return [self._variables[name] for name in names]


def device_argument(device: jax.Device | Partition | None) -> dict[str, Any]:
    """The argument of a builder's method, which builders of users need not take."""
    return {} if device is None else {"device": device}


def _load(source: Any, spec: EnvironmentSpec) -> Any:
    """The dataset of an experiment."""
    from .data import sources  # Only who has data pays for what reads it.

    return sources.load(source, spec)


def check_budget(experiment: Experiment) -> None:
    """Raises RequestError where not even one step of all environments is within the budget."""
    budget, num_envs = experiment.budget, experiment.builder.num_envs
    if budget < num_envs:
        raise RequestError(
            f"--steps is {budget}, and {num_envs} environments step together (--config.num_envs); "
            "take at least as many steps."
        )


def check_streams(experiment: Experiment, num_agents: int) -> None:
    """Raises RequestError where an actor's streams are not all agents of its environments."""
    num_envs = experiment.builder.num_envs
    if experiment.acts and num_envs % num_agents:
        low = num_envs - num_envs % num_agents
        choices = " or ".join(str(n) for n in (low, low + num_agents) if n)
        raise RequestError(
            f"--config.num_envs is {num_envs}, and {experiment.env} has {num_agents} agents, each "
            f"of which counts as one; take a multiple: {choices}."
        )


def short_budget(experiment: Experiment, replay_spec: ReplaySpec) -> Iterator[str]:
    """Yields a sentence where a run of the experiment will end before its first gradient step."""
    budget, batches = experiment.budget, experiment.builder.steps_per_dispatch
    least = pace.least_steps(replay_spec, batches)
    if budget >= least:
        return
    size = replay_spec.batch_size
    if isinstance(replay_spec.item, Rollouts):
        wait = (
            f"a batch is {size} rollouts of {replay_spec.item.length} steps "
            "(--config.rollout_length)"
        )
    else:
        wait = (
            f"the replay waits for {replay_spec.min_size:,} items (--config.min_replay_size), and "
            f"{batches} batches of {size} are drawn at once (--config.steps_per_dispatch)"
        )
    yield (
        f"{budget:,} actor steps are too few for a gradient step, and without one nothing is "
        f"learned: {wait}; take --steps {least} or more"
    )
