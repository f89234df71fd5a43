"""A run's policy as pure functions and named parameters, for code of one's own."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from ... import environments
from ...agents.interfaces import ActorCore
from .. import seeds
from ..experiment import Experiment
from ..logging.report import Reporter
from .loading import Which, learned

if TYPE_CHECKING:
    import jax

    from ...environments import EnvironmentSpec

Nest = Any


@dataclasses.dataclass(frozen=True)
class Policy:
    """The policy that a run has learned, without exploration. Its functions are pure, and of one
    observation: `jax.vmap` makes them those of many.

        state = policy.init(jax.random.key(0))
        action, state = policy.act(policy.parameters, observation, state)

    where `state = policy.reset(state)` comes before the first step of every further episode.
    """

    agent: str
    env: str
    which: Which
    spec: EnvironmentSpec
    """Of one environment: what `act` takes and gives."""
    parameters: Nest
    """Arrays by the names of the network's layers."""
    core: ActorCore
    """The policy itself."""
    actor_steps: int
    """Of training that it had behind it."""
    evaluation: Mapping[str, Any] | None
    """That by which it is the best of its run: mean, std, min, max, episodes. None: it is the
    newest."""

    def init(self, key: jax.Array) -> Nest:
        """The state before the first step: what the policy remembers, and its randomness."""
        return self.core.init(key)

    @property
    def act(self) -> Callable[[Nest, Nest, Nest], tuple[Nest, Nest]]:
        """`(parameters, observation, state) -> (action, state)`."""
        return self.core.select_action

    def reset(self, state: Nest) -> Nest:
        """The state where an episode begins."""
        return state if self.core.reset is None else self.core.reset(state)


def load_policy(
    run: str | os.PathLike[str],
    which: Which = "newest",
    *,
    experiment: Experiment | None = None,
    reporter: Reporter | None = None,
) -> Policy:
    """The policy of a run. No replay is read and no learner is made.

    Args:
      run: its directory; it may have ended or not.
      which: that of the "newest" checkpoint, or the "best" by the run's evaluations.
      experiment: that of the run; None: as its `config.json` says.
      reporter: where warnings go.

    Raises:
      RequestError: if there is no such run or nothing learned yet, or its experiment is not known.
      CheckpointError: if what was learned is damaged.
    """
    found = learned(run, which, experiment, (reporter or Reporter()).line)
    experiment = found.experiment
    seed = seeds.derive(experiment.seed, "evaluation_environment")
    with experiment.make_environment(seed=seed, num_envs=1, evaluation=True) as environment:
        spec = environments.make_spec(environment)
    networks = experiment.make_networks(spec)
    counters = found.checkpoint.counters
    return Policy(
        agent=experiment.builder.name,
        env=experiment.env,
        which=which,
        spec=spec,
        parameters=found.source(spec, networks).get_variables()[0],
        core=experiment.builder.make_policy(networks, spec, evaluation=True),
        actor_steps=counters["actor_steps"],
        evaluation=dict(counters) if which == "best" else None,
    )
