"""Judging what a run has learned, after it or while it runs."""

from __future__ import annotations

import inspect
import os
import pathlib
from collections.abc import Mapping
from typing import Any

import jax

from ... import environments
from ...agents.programs import runtime
from .. import seeds
from ..episodes import WIN_RATE
from ..errors import RequestError
from ..experiment import Experiment
from ..logging.report import Reporter
from ..signals import Stop
from . import elsewhere, opponents, video
from .evaluator import Evaluator, Outcome, play
from .loading import Learned, Which, learned


def evaluate(
    run: str | os.PathLike[str],
    *,
    which: Which = "newest",
    episodes: int | None = None,
    seed: int | None = None,
    experiment: Experiment | None = None,
    save_video: str | os.PathLike[str] | None = None,
    render: bool = False,
    env: str | None = None,
    env_options: Mapping[str, Any] | None = None,
    opponent: str | os.PathLike[str] | None = None,
    reporter: Reporter | None = None,
) -> Outcome:
    """Plays the evaluation policy of a run. Nothing in the run changes.

    Args:
      run: its directory; it may have ended or not.
      which: the policy of the "newest" checkpoint, or the "best" by the run's evaluations. The best
        plays the episodes of its evaluation again, whose returns it gives again, unless `episodes`,
        `seed`, `save_video`, `render`, `env`, `env_options` or `opponent` are given.
      episodes: how many; None: 20.
      seed: of these episodes, which are none that the run saw; None: 0.
      experiment: that of the run; None: as its `config.json` says.
      save_video: file for a film of the episodes, played one after another.
      render: shows the episodes in a window, played one after another.
      env: id of another environment to play in; None: that of the run.
      env_options: of `environments.make` to play with, beside those of the run's own.
      opponent: directory of a run whose newest policy plays against this one, in games of two, or
        `best` in it; it draws its moves as it did in training. None: the opponent that evaluations
        have.
      reporter: where warnings go.

    Raises:
      RequestError: if there is no such run, it has learned nothing yet, no film can be made, or its
        experiment is not known (see `resume`).
      CheckpointError: if what was learned is damaged.
    """
    if episodes is not None and episodes < 1:
        raise RequestError(f"{episodes} episodes were to be played; play at least 1.")
    runtime.configure_cpu()
    runtime.require_devices()
    say = (reporter or Reporter()).line
    found = learned(run, which, experiment, say)
    others = episodes, seed, save_video, env, env_options or None, render or None, opponent
    if which == "best" and all(one is None for one in others):
        return _again(found)
    episodes, seed = episodes or 20, seed or 0
    seeds.check(seed)
    if render and save_video is not None:
        raise RequestError("--render shows the episodes and --video films them; leave one out.")
    if env is not None or env_options:
        found = elsewhere.moved(found, run, env, env_options or {})
    experiment, filmed = found.experiment, save_video is not None
    options: dict[str, Any] = {}
    if filmed:
        video.prepare()
    if filmed or render:
        options["render_mode"] = "rgb_array" if filmed else "human"
        _require_drawing(experiment)
    environment = experiment.make_environment(
        seed=seeds.derive(experiment.seed, "evaluation_environment", seed, 1),
        num_envs=1 if filmed or render else min(episodes, experiment.evaluation.num_envs),
        evaluation=True,
        **options,
    )
    try:
        if opponent is not None:
            opponents.face_run(environment, environments.make_spec(environment), opponent, say)
        key = seeds.derive(experiment.seed, "evaluation_actor", seed, 1)
        try:
            actor = make_actor(found, environment, key)
        except ValueError as error:
            if env is None:
                raise
            raise RequestError(
                f"the policy of {os.fspath(run)} cannot act in {env}: {error}"
            ) from error
        if save_video is None:
            played = play(environment, actor, episodes, say=say)
        else:
            with video.Film(pathlib.Path(save_video), environment) as film:
                played = play(environment, actor, episodes, watch=film.take, say=say)
    finally:
        environment.close()
    assert played is not None
    info = played.info
    if opponents.is_game(environment):
        info = {**info, WIN_RATE: opponents.win_rate(played.returns)}
    steps = (found.checkpoint.counters[name] for name in ("actor_steps", "learner_steps"))
    actor_steps, learner_steps = steps
    agents = environment.num_agents
    return Outcome(actor_steps, tuple(played.returns), learner_steps, info, agents)


def make_actor(found: Learned, environment: Any, seed: int, *, explores: bool = False) -> Any:
    """An actor with what a run has learned.

    Args:
      found: of the run.
      environment: a vector, in which it will act.
      seed: of its policy.
      explores: whether the policy is that of training, where that was, not that of evaluations.
    """
    experiment, builder = found.experiment, found.experiment.builder
    spec = environments.make_spec(environment)
    networks = experiment.make_networks(spec)
    policy = builder.make_policy(networks, spec, evaluation=not explores)
    source = found.source(spec, networks)
    key = jax.random.key(seed)
    actor = builder.make_actor(key, policy, spec, source, num_envs=environment.num_envs)
    if explores:
        actor.set_num_actions(found.checkpoint.counters["actor_steps"])
    return actor


def _again(found: Learned) -> Outcome:
    """The evaluation by which a policy is the best, once more."""
    experiment, evaluation = found.experiment, found.checkpoint.counters
    seed = seeds.derive(experiment.seed, "evaluation_environment", evaluation["index"])
    with experiment.make_environment(seed=seed, num_envs=1, evaluation=True) as environment:
        spec = environments.make_spec(environment)
    networks = experiment.make_networks(spec)
    evaluator = Evaluator(experiment, spec, networks, found.source(spec, networks))
    outcome = evaluator.run(
        evaluation["index"],
        evaluation["episodes"],
        evaluation["actor_steps"],
        Stop(),
        evaluation["learner_steps"],
    )
    assert outcome is not None
    return outcome


def _require_drawing(experiment: Experiment) -> None:
    """Raises RequestError where the environments cannot be asked to draw."""
    taken = inspect.signature(experiment.environment_factory).parameters.values()
    if not any(one.name == "render_mode" or one.kind is one.VAR_KEYWORD for one in taken):
        raise RequestError(
            "the environments cannot be drawn: the run's environment factory takes no render_mode; "
            "have it take render_mode=None and hand it to environments.make."
        )
