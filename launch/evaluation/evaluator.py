"""Judging a policy: whole episodes on environments that training never sees."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import dm_env
import jax
import numpy as np

from .. import seeds
from ..episodes import WIN_RATE, WIN_RATE_OLDER, mean_info
from ..experiment import Experiment
from ..factory import device_argument
from ..files.best import BestPolicy
from ..signals import Stop
from . import opponents

if TYPE_CHECKING:
    from ...agents.interfaces import VariableSource
    from ...agents.programs.placement import Partition
    from ...environments import EnvironmentSpec, Vector

_LAST = int(dm_env.StepType.LAST)
LONG_EPISODE = 10_000
"""Steps after which an episode that nothing is known to end is told of."""
_MOST_TEXTS = 8
"""Lines kept of an evaluation."""
_LIMITED = np.iinfo(np.int64).max


@dataclasses.dataclass(frozen=True)
class Outcome:
    """Returns of the episodes of one evaluation."""

    actor_steps: int
    """Training steps that the policy had behind it."""
    returns: tuple[float, ...]
    learner_steps: int = 0
    """Gradient steps that it had behind it."""
    info: Mapping[str, float] = dataclasses.field(default_factory=dict)
    """Means of the numbers that environments give beside rewards, by name (`episodes.INFO`)."""
    num_agents: int = 1
    """Agents of an environment, each of which has a return in every episode."""
    texts: tuple[str, ...] = ()
    """Lines on some of the episodes, of environments that have any."""

    def summary(self) -> dict[str, Any]:
        """As an entry of `result.json`."""
        returns = np.asarray(self.returns)
        return {
            "actor_steps": self.actor_steps,
            "learner_steps": self.learner_steps,
            "episodes": len(self.returns) // self.num_agents,
            "mean": float(returns.mean()),
            "std": float(returns.std()),
            "min": float(returns.min()),
            "max": float(returns.max()),
            **self.info,
        }

    def to_monitor(self) -> dict[str, Any]:
        """As `Monitor.evaluated` takes it."""
        return {**self.summary(), "texts": [*self.texts]}


class Held:
    """A variable source whose variables are those that another had when they were taken.

    Attributes:
      version: counts up with every `take`.
    """

    def __init__(self, source: VariableSource):
        """Nothing is taken yet."""
        self._source = source
        if hasattr(source, "place_by"):  # Of a client, so that newer ones come in their places.
            self.place_by: Callable[[str, Callable[[Any], Any]], None] = source.place_by
        self._variables: dict[str, Any] = {}
        self.version = 0

    def take(self) -> None:
        """Takes the newest of the source."""
        names = tuple(self._variables) or ("policy",)
        self._variables = dict(zip(names, self._source.get_variables(names), strict=True))
        self.version += 1

    def get_variables(self, names: Sequence[str] = ("policy",)) -> list[Any]:
        """The named collections."""
        missing = [name for name in names if name not in self._variables]
        if missing:
            found = self._source.get_variables(missing)
            self._variables |= zip(missing, found, strict=True)
        return [self._variables[name] for name in names]

    @property
    def variables(self) -> dict[str, Any]:
        """All that was taken, by name."""
        return dict(self._variables)


class Evaluator:
    """Evaluates the variables of a source, with a policy and environments of its own.

    The k-th evaluation has environments of its own, made from the experiment's seed and k, and
    its policy starts from the same state each time. So an evaluation repeats exactly, and
    training does not notice it.
    """

    def __init__(
        self,
        experiment: Experiment,
        spec: EnvironmentSpec,
        networks: Any,
        source: Any,
        device: jax.Device | Partition | None = None,
    ):
        """Makes the policy.

        Args:
          experiment: what is run.
          spec: of one environment.
          networks: as the builder takes them.
          source: variable source that is asked for "policy".
          device: where the policy computes, as of `Builder.make_actor`.
        """
        self._experiment, self._device = experiment, device
        self._spec = spec
        self._policy = experiment.builder.make_policy(networks, spec, evaluation=True)
        self._source = Held(source)
        self._actors: dict[int, tuple[Any, Any]] = {}
        self._told = False
        self._make_opponent = functools.partial(experiment.builder.make_policy, networks, spec)
        self._older = opponents.OlderSelf()

    def warm_up(self) -> None:
        """Compiles the policy for evaluations on the way, by one step with the variables there
        are."""
        self._source.take()
        with self._make_environment(0, self._experiment.evaluation.episodes) as environment:
            actor = self._actor(environment.num_envs)
            timestep = environment.reset()
            actor.observe_first(timestep)
            actor.select_action(timestep.observation)

    def run(
        self,
        index: int,
        episodes: int,
        actor_steps: int,
        stop: Stop,
        learner_steps: int = 0,
        say: Callable[[str], None] = lambda line: None,
    ) -> Outcome | None:
        """One evaluation.

        Args:
          index: k.
          episodes: how many are played to their end.
          actor_steps: for the outcome.
          stop: looked at before every step.
          learner_steps: for the outcome.
          say: told, once, of an episode that does not end.

        Returns:
          The outcome; None where it was stopped before its end.
        """
        self._source.take()
        environment = self._make_environment(index, episodes)

        def say_once(line: str) -> None:
            if not self._told:
                self._told = True
                say(line)

        try:
            played = self._play(environment, episodes, stop, say_once)
            if played is not None and opponents.is_game(environment):
                played = self._play_older(environment, index + 1, played, stop, say_once)
        finally:
            environment.close()
        if played is None:
            return None
        agents = environment.num_agents
        returns, texts = tuple(played.returns), tuple(played.texts)
        return Outcome(actor_steps, returns, learner_steps, played.info, agents, texts)

    def _make_environment(self, index: int, episodes: int) -> Vector:
        """The environments of the k-th evaluation, of so many episodes."""
        return self._experiment.make_environment(
            seed=seeds.derive(self._experiment.seed, "evaluation_environment", index),
            num_envs=min(episodes, self._experiment.evaluation.num_envs),
            evaluation=True,
        )

    def _play_older(
        self, environment: Any, number: int, played: Played, stop: Stop, say: Callable[[str], None]
    ) -> Played | None:
        """Plays as many games against an earlier policy, where there is one.

        Args:
          environment: of games that were played against whoever comes with it.
          number: of the evaluation, from 1 on.
          played: these games.
          stop, say: as of `run`.

        Returns:
          Those games with the share that was won of each; None: it was stopped.
        """
        info = {**played.info, WIN_RATE: opponents.win_rate(played.returns)}
        if (older := self._older.of(number)) is not None:
            more = self._play(environment, len(played.returns), stop, say, older)
            if more is None:
                return None
            info[WIN_RATE_OLDER] = opponents.win_rate(more.returns)
        self._older.hold(number, *self._source.get_variables(("policy",)))
        return Played(played.returns, info)

    def _play(
        self,
        environment: Any,
        episodes: int,
        stop: Stop,
        say: Callable[[str], None],
        opponent: Any = None,
    ) -> Played | None:
        """Plays whole episodes, of games against parameters of the policy where these are given.

        Returns:
          Those; None: it was stopped.
        """
        if opponent is not None:
            opponents.oppose(environment, self._make_opponent(), opponent)
        return play(environment, self._actor(environment.num_envs), episodes, stop, say=say)

    def keep(self, best: BestPolicy, index: int, outcome: Outcome) -> bool:
        """Offers what the last evaluation judged as the best policy of the run.

        Args:
          best: that of the run.
          index: k of the evaluation.
          outcome: of it.

        Returns:
          Whether it is.
        """
        evaluation = {**outcome.summary(), "index": index}
        return best.offer(self._source.variables, evaluation, self._experiment.identity())

    @property
    def _key(self) -> jax.Array:
        """From which the policy's states are made, the same at every evaluation."""
        return jax.random.key(seeds.derive(self._experiment.seed, "evaluation_actor"))

    def _actor(self, num_envs: int) -> Any:
        """An actor as it was when it was made. Kept, because a new one compiles anew."""
        if num_envs not in self._actors:
            actor: Any = self._experiment.builder.make_actor(
                self._key,
                self._policy,
                self._spec,
                self._source,
                num_envs=num_envs,
                **device_argument(self._device),
            )
            self._actors[num_envs] = (actor, actor.save())
        actor, fresh = self._actors[num_envs]
        actor.restore(fresh)
        actor.update(wait=True)
        return actor


class Played(NamedTuple):
    """What episodes came to."""

    returns: Sequence[float]
    info: Mapping[str, float] = {}
    texts: Sequence[str] = ()
    """As of `Outcome`."""


def play(
    environment: Any,
    actor: Any,
    episodes: int,
    stop: Stop | None = None,
    watch: Callable[[], None] | None = None,
    say: Callable[[str], None] = lambda line: None,
) -> Played | None:
    """Plays whole episodes.

    Environment i plays the i-th of every N, so that which episodes count does not depend on how
    long they are: of the first to end, short ones would be too many. Of several agents each plays
    E episodes.

    Args:
      environment: a vector of N environments.
      actor: acts in all of them.
      episodes: E.
      stop: looked at before every step.
      watch: called after every time step, the first included.
      say: told, once, of an episode that does not end.

    Returns:
      Those of E episodes, of every agent, or None where it was stopped.
    """
    n = environment.num_envs
    episodes *= environment.num_agents
    quota = [(episodes - i + n - 1) // n for i in range(n)]
    returns: list[list[float]] = [[] for _ in range(n)]
    totals, lengths = np.zeros(n), np.zeros(n, np.int64)
    infos: list[Mapping[str, float]] = []
    texts: list[str] = []
    text_of = getattr(environment, "episode_text", lambda index: None)
    limit = _LIMITED if environment.max_episode_steps else LONG_EPISODE
    timestep = environment.reset()
    actor.observe_first(timestep)
    while any(len(done) < wanted for done, wanted in zip(returns, quota, strict=True)):
        if stop is not None and stop.requested:
            return None
        if watch is not None:
            watch()
        action = actor.select_action(timestep.observation)
        timestep = environment.step(action)
        actor.observe(action, timestep)
        totals += timestep.reward
        lengths += 1
        if lengths.max() > limit:
            limit = _LIMITED
            say(endless())
        kinds = timestep.step_type.tolist()
        if _LAST in kinds:
            for i, kind in enumerate(kinds):
                if kind == _LAST:
                    if len(returns[i]) < quota[i]:
                        returns[i].append(float(totals[i]))
                        infos.append(environment.episode_info(i))
                        if len(texts) < _MOST_TEXTS and (text := text_of(i)) is not None:
                            texts.append(text)
                    totals[i], lengths[i] = 0.0, 0
    if watch is not None:
        watch()
    return Played([returns[e % n][e // n] for e in range(episodes)], mean_info(infos), texts)


def endless() -> str:
    """Returns what is said where an episode does not end and nothing is known to end it."""
    return (
        f"warning: an episode of an evaluation has not ended after {LONG_EPISODE:,} steps, and the "
        "run waits for it; --env.max_episode_steps N has episodes end after N steps"
    )
