"""Runs experiments in the kind of launch that was asked for, and goes on with runs."""

from __future__ import annotations

import dataclasses
import functools
import os
from collections.abc import Mapping
from typing import Any, Protocol

from . import extras
from .errors import RequestError
from .experiment import Experiment
from .files.directory import RunDirectory
from .files.result import Result
from .local import run as local
from .logging.report import Reporter
from .roles import KINDS, RAY, choose_engine
from .specification.begun import asked_of
from .specification.stored import engine as engine_of


class Launcher(Protocol):
    """Runs an experiment in one kind of launch."""

    def __call__(
        self,
        experiment: Experiment,
        out: str | os.PathLike[str],
        *,
        resume: bool = False,
        progress: bool = True,
        reporter: Reporter | None = None,
        request: Mapping[str, Any] | None = None,
    ) -> Result:
        """Args, Returns, Raises: as of `launch.run`."""


def runner(kind: str, roles: Mapping[str, Any], engine: str | None = None) -> Launcher:
    """Returns what runs experiments in a kind of launch.

    Args:
      kind: one of `roles.KINDS`.
      roles: fields of `roles.Roles`, where it is not in one process.
      engine: one of `roles.ENGINES`; None: see `roles.choose_engine`.

    Raises:
      RequestError: if these do not go together, or what they need is not installed.
    """
    chosen = choose_engine(kind, roles, engine)
    if chosen is None:
        if kind == "compiled":
            from .compiled import run as compiled

            return compiled.run
        return local.run
    asked = f"--launch {kind}" + (f" --engine {chosen}" if kind == "processes" else "")
    if chosen == RAY:
        extras.require("ray", "ray", asked)
        from .distributed.engines.ray import ray_engine as ray_engine

        return functools.partial(ray_engine.run, kind=kind, roles=roles)
    for name in ("launchpad", "reverb"):
        if not extras.is_installed(name):
            raise RequestError(
                f"{asked} needs {name}, which is not installed: pip install 'troupe[distributed]' "
                "under Python 3.10, or take --launch processes --engine ray (troupe[ray])."
            )
    from .distributed.engines.launchpad import launchpad_engine

    return functools.partial(launchpad_engine.run, kind=kind, roles=roles)


def run(
    experiment: Experiment,
    out: str | os.PathLike[str],
    *,
    kind: str = KINDS[0],
    resume: bool = False,
    progress: bool = True,
    reporter: Reporter | None = None,
    request: Mapping[str, Any] | None = None,
) -> Result:
    """Runs an experiment in this process: step by step, or as one program.

    Launches of other kinds have roles; `runner` returns what they are run with.

    Args:
      experiment: what is run.
      out: directory of the run; new or empty, or with `resume` that of an earlier run.
      kind: "one-process" or "compiled".
      resume: go on from the newest complete checkpoint of `out`.
      progress: show how it goes: a live line where standard output is a terminal, plain
        lines elsewhere. The log file has the lines in any case.
      reporter: where words go instead.
      request: what `config.json` shall say; None: what the experiment does.

    Returns:
      What was also written to `result.json`.

    Raises:
      RequestError: if there is no such kind in one process.
      ValueError: if the run cannot begin as asked (often its subclass `RequestError`).
      RunError: if it failed on its way; a checkpoint was saved before where that was possible.
      Interrupted: if a signal stopped it.
    """
    if kind not in ("one-process", "compiled"):
        raise RequestError(
            f"launch.run runs in one process, as one-process or compiled, not {kind!r}; take "
            "launch.running.runner(kind, roles)."
        )
    launcher = runner(kind, {})
    return launcher(
        experiment, out, resume=resume, progress=progress, reporter=reporter, request=request
    )


def resume(
    run: str | os.PathLike[str],
    experiment: Experiment | None = None,
    *,
    steps: int | None = None,
    launch: str | None = None,
    progress: bool = True,
    reporter: Reporter | None = None,
) -> Result:
    """Goes on with a run from its newest checkpoint.

    Args:
      run: its directory.
      experiment: that of the run; None: as its `config.json` says, without callbacks. Needed where
        it was begun in Python with a builder or a factory that cannot be imported.
      steps: a new budget, of actor steps or of gradient steps as before.
      launch: kind of launch, one of `roles.KINDS`; None: that of before, on its engine.
      progress: whether to show how it goes.
      reporter: where words go instead.

    Returns:
      What it came to.

    Raises:
      RequestError: if there is no such run, it is complete, or its experiment is not known.
      RunError, Interrupted: as of `launch.run`.
    """
    directory = RunDirectory(run)
    config, request = directory.read_config(), None
    if experiment is None:
        asked = asked_of(directory)
        asked = asked if steps is None else dataclasses.replace(asked, steps=steps)
        if launch is not None:
            roles = {} if launch == KINDS[0] else asked.roles
            asked = dataclasses.replace(asked, launch=launch, roles=roles, engine=None)
        experiment, request = asked.experiment(), asked.to_json()
    elif steps is not None:
        budget = "num_actor_steps" if experiment.acts else "num_learner_steps"
        changed: Any = {budget: steps}
        experiment = dataclasses.replace(experiment, **changed)
    kind = launch or config.get("launch", KINDS[0])
    roles = {} if kind == KINDS[0] else config.get("roles", {})
    go_on = runner(kind, roles, None if launch else engine_of(config))
    return go_on(
        experiment, run, resume=True, progress=progress, reporter=reporter, request=request
    )
