"""Running experiments in whatever kind of launch was asked for, and going on with runs."""

from __future__ import annotations

import dataclasses
import functools
import importlib.util
import os
from collections.abc import Callable, Mapping
from typing import Any

from . import extras
from .distributed.deployment import KINDS
from .errors import RequestError
from .experiment import Experiment
from .files.directory import RunDirectory
from .files.result import Result
from .local import run as local
from .logging.report import Reporter
from .specification.begun import asked_of


def runner(kind: str, roles: Mapping[str, Any]) -> Callable[..., Any]:
    """What runs experiments in a kind of launch; it is called as `launch.run` is, and returns None
    on a host that is not the first of several.

    Args:
      kind: one of `deployment.KINDS`.
      roles: fields of `deployment.Roles`, where it is not in one process.

    Raises:
      RequestError: if what it needs is not installed.
    """
    if kind == KINDS[0]:
        return local.run
    if kind == "ray":
        extras.require("ray", "ray", "--launch ray")
        from .distributed.engines.ray import ray_engine as ray_engine

        return functools.partial(ray_engine.run, roles=roles)
    for name in ("launchpad", "reverb"):
        if importlib.util.find_spec(name) is None:
            raise RequestError(
                f"launching several roles needs {name}, which is not installed: "
                "pip install 'troupe[distributed]' under Python 3.10."
            )
    from .distributed.engines.launchpad import launchpad_engine

    return functools.partial(launchpad_engine.run, kind=kind, roles=roles)


def resume(
    run: str | os.PathLike[str],
    experiment: Experiment | None = None,
    *,
    steps: int | None = None,
    progress: bool = True,
    reporter: Reporter | None = None,
) -> Result | None:
    """Goes on with a run from its newest checkpoint, in the kind of launch in which it was begun.

    Args:
      run: its directory.
      experiment: that of the run; None: as its `config.json` says, without callbacks. Needed where
        it was begun in Python with a builder or a factory that cannot be imported.
      steps: a new budget, of actor steps or of gradient steps as before.
      progress: whether to show how it goes.
      reporter: where words go instead.

    Returns:
      What it came to; None on a host that is not the first of several.

    Raises:
      RequestError: if there is no such run, it is complete, or its experiment is not known.
      RunError, Interrupted: as of `launch.run`.
    """
    directory = RunDirectory(run)
    config, request = directory.read_config(), None
    if experiment is None:
        asked = asked_of(directory)
        asked = asked if steps is None else dataclasses.replace(asked, steps=steps)
        experiment, request = asked.experiment(), asked.to_json()
    elif steps is not None:
        budget = "num_actor_steps" if experiment.acts else "num_learner_steps"
        changed: Any = {budget: steps}
        experiment = dataclasses.replace(experiment, **changed)
    go_on = runner(config.get("launch", KINDS[0]), config.get("roles", {}))
    return go_on(
        experiment, run, resume=True, progress=progress, reporter=reporter, request=request
    )
