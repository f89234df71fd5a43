"""What a run has learned, in another environment than it learned in."""

from __future__ import annotations

import dataclasses
import functools
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ... import environments
from ..errors import RequestError
from ..files.directory import RunDirectory
from ..specification.begun import asked_of
from ..specification.recipe import Recipe
from .loading import Learned

if TYPE_CHECKING:
    from ...environments import Vector


def moved(
    found: Learned,
    run: str | os.PathLike[str],
    env: str | None,
    options: Mapping[str, Any],
) -> Learned:
    """Returns what was learned, to be judged in another environment.

    Args:
      found: of the run.
      run: its directory.
      env: id of an environment; None: that of the run.
      options: of `environments.make`; in the run's own environment they come beside its own.

    Raises:
      RequestError: if the run's environment was made in Python, and none is named.
    """
    asked, experiment = asked_of(RunDirectory(run)), found.experiment
    if isinstance(asked, Recipe):
        own = asked.environment if env in (None, asked.env) else {}
        there = dataclasses.replace(
            asked, env=env or asked.env, environment={**own, **options}
        ).alone()
        factory, env = there.environment_factory, there.env
    elif env is not None:
        factory = functools.partial(_make, env, experiment.builder.actions, dict(options))
    else:
        raise RequestError(
            f"the environment of {os.fspath(run)} was made in Python, where its options are; name "
            "another with --env."
        )
    experiment = dataclasses.replace(experiment, env=env, environment_factory=factory)
    return dataclasses.replace(found, experiment=experiment)


def _make(
    env: str,
    actions: Any,
    options: Mapping[str, Any],
    *,
    seed: int,
    num_envs: int,
    evaluation: bool,
    render_mode: str | None = None,
) -> Vector:
    del evaluation
    return environments.make(
        env, seed=seed, num_envs=num_envs, actions=actions, render_mode=render_mode, **options
    )
