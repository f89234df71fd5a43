"""Judging what a run has learned so far, from its newest checkpoint."""

from __future__ import annotations

import dataclasses
import functools
import os
import pathlib
from typing import Any

import jax

from ...agents.learning import dispatch
from .. import seeds
from ..errors import RequestError
from ..experiment import check_identity
from ..files.checkpoints import Checkpoint, Store
from ..files.directory import RunDirectory
from ..local import components
from ..local.saver import restore_learner
from ..request.recipe import Recipe
from ..telling.report import Reporter
from . import video
from .evaluation import Outcome, play


def evaluate(
    run: str | os.PathLike[str],
    *,
    episodes: int = 20,
    seed: int = 0,
    save_video: str | os.PathLike[str] | None = None,
    reporter: Reporter | None = None,
) -> Outcome:
    """Plays the evaluation policy of a run's newest checkpoint. Nothing in the run changes.

    Args:
      run: directory of a run that `troupe train` started, ended or not.
      episodes: how many.
      seed: of these episodes; they are none that the run saw.
      save_video: file for a film of the episodes, played one after another.
      reporter: where warnings go.

    Raises:
      RequestError: if there is no such run or no checkpoint yet, or no film can be made of it.
      CheckpointError: if every checkpoint is damaged.
    """
    if episodes < 1:
        raise RequestError(f"{episodes} episodes were to be played; play at least 1.")
    dispatch.configure_cpu()
    directory = RunDirectory(run)
    recipe = Recipe.from_json(directory.read_config())
    reporter = reporter or Reporter()
    checkpoint = Store(directory.checkpoints).newest(lambda damage: reporter.line(damage))
    if checkpoint is None:
        raise RequestError(f"{run} has no checkpoint yet.")
    filmed = save_video is not None
    if filmed:
        video.prepare()
    make = functools.partial(recipe.make_environment, evaluation=True)
    environment = make(
        seed=seeds.derive(recipe.seed, "evaluation_environment", seed, 1),
        num_envs=1 if filmed else min(episodes, recipe.evaluation.num_envs),
        render_mode="rgb_array" if filmed else None,
    )
    try:
        actor = make_actor(
            recipe, checkpoint, environment, seeds.derive(recipe.seed, "evaluation_actor", seed, 1)
        )
        if save_video is None:
            returns = play(environment, actor, episodes)
        else:
            with video.Film(pathlib.Path(save_video), environment) as film:
                returns = play(environment, actor, episodes, watch=film.take)
    finally:
        environment.close()
    assert returns is not None
    counters = checkpoint.counters
    return Outcome(counters["actor_steps"], tuple(returns), counters["learner_steps"])


def make_actor(
    recipe: Recipe, checkpoint: Checkpoint, environment: Any, seed: int, *, explores: bool = False
) -> Any:
    """An actor with what a checkpoint has learned.

    Args:
      recipe: of the run.
      checkpoint: of the run.
      environment: a vector, in which it will act.
      seed: of its policy.
      explores: whether the policy is that of training, where that was, not that of evaluations.
    """
    # What was learned needs no data, which may be gone.
    experiment = dataclasses.replace(recipe, data=None).experiment()
    check_identity(checkpoint.identity, experiment.identity(), checkpoint.path)
    made = components.make(experiment, environment)
    restore_learner(checkpoint, made.learner)
    builder = experiment.builder
    networks, num_envs = experiment.make_networks(made.spec), environment.num_envs
    policy = builder.make_policy(networks, made.spec, evaluation=not explores)
    key = jax.random.key(seed)
    actor = builder.make_actor(key, policy, made.spec, made.learner, num_envs=num_envs)
    if explores:
        actor.set_num_actions(checkpoint.counters["actor_steps"])
    return actor
