"""Runs several recipes in this process: as one program where that can be, else one by one."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import NamedTuple

from .. import environments
from ..launch import planning, running, seeds, transfer
from ..launch.errors import Interrupted
from ..launch.experiment import Experiment
from ..launch.files.result import Result
from ..launch.logging import report
from ..launch.logging.combined import CombinedReporter
from ..launch.specification.recipe import Recipe

_IN_THIS_PROCESS = ("one-process", "threads", "compiled")
"""Launches whose learner has the devices of this process."""


class Asked(NamedTuple):
    """A run that is to begin or to go on."""

    recipe: Recipe
    out: str | os.PathLike[str]
    resume: bool = False
    name: str = ""
    """What it is called among others."""


def check(recipe: Recipe) -> Experiment:
    """Returns the experiment of a recipe whose run can begin.

    Raises:
      ValueError: if it cannot.
    """
    experiment = recipe.experiment()
    seed = seeds.derive(experiment.seed, "environment")
    builder = experiment.builder
    with experiment.environment_factory(seed=seed, num_envs=1, evaluation=False) as environment:
        spec = environments.make_spec(environment)
        if recipe.launch == "compiled":
            from ..launch.compiled.components import require_compilable

            require_compilable(experiment, environment)
    if experiment.partition is not None and recipe.launch in _IN_THIS_PROCESS:
        with planning.refused(experiment, spec):
            experiment.partition.mesh.devices()
    networks = experiment.make_networks(spec)
    builder.make_policy(networks, spec, num_streams=builder.num_envs)
    builder.make_replay_spec(spec)
    return experiment


def run(runs: Sequence[Asked], reporter: report.Reporter) -> list[Result | Exception]:
    """Runs recipes of one kind of launch.

    Args:
      runs: compiled ones differ in seeds and numbers of their config alone.
      reporter: where words go.

    Returns:
      Of each what it came to, or the error that ended it. One that is interrupted ends the others.

    Raises:
      RequestError: if compiled runs cannot be one program.
    """
    if len(runs) > 1 and runs[0].recipe.launch == "compiled":
        from ..launch.compiled.run import run_population

        combined = CombinedReporter(reporter, [one.name or str(one.out) for one in runs])
        begun = [_is_begun(one, combined.of_run(index)) for index, one in enumerate(runs)]
        return run_population(
            [one.recipe.experiment() for one in runs],
            [one.out for one in runs],
            resume=begun,
            reporters=[combined.of_run(index) for index in range(len(runs))],
            requests=[one.recipe.to_json() for one in runs],
        )
    found: list[Result | Exception] = []
    for one in runs:
        recipe = one.recipe
        launcher = running.runner(recipe.launch, recipe.roles, recipe.engine)
        try:
            result = launcher(
                recipe.experiment(),
                one.out,
                resume=_is_begun(one, reporter),
                reporter=reporter,
                request=recipe.to_json(),
            )
        except Interrupted as stop:
            return [*found, *[stop] * (len(runs) - len(found))]
        except Exception as error:
            found.append(error)
        else:
            found.append(result)
    return found


def _is_begun(one: Asked, reporter: report.Reporter) -> bool:
    """Returns whether a run is to be gone on with; one that begins with weights of another is."""
    return one.resume or transfer.begin_if_asked(one.recipe, one.out, reporter)
