"""Runs whose loop is one program, from the first step to the result."""

from __future__ import annotations

import functools
import os
import threading
from collections.abc import Mapping, Sequence
from typing import Any

from .. import signals
from ..errors import RequestError
from ..experiment import Experiment, require_experiment
from ..files.result import Result
from ..lifecycle import RunLifecycle
from ..local.components import Components
from ..local.run import train
from ..logging import report
from .components import Blueprint
from .views import CompiledLoop

_MOST_STEPS = 2**31 - 1
"""Of actor steps, which a device counts in 32 bits."""


def run(
    experiment: Experiment,
    out: str | os.PathLike[str],
    *,
    resume: bool = False,
    progress: bool = True,
    reporter: report.Reporter | None = None,
    request: Mapping[str, Any] | None = None,
) -> Result:
    """Runs an experiment as one program: acting, the environment, the replay and learning.

    The environment has to be written in JAX (`environments.functional`); all else, from the builder
    to checkpoints, is as in every launch. Args, returns and raises as of `launch.run`.
    """
    require_experiment(experiment)
    blueprint = Blueprint([experiment])
    return train(
        experiment,
        out,
        kind="compiled",
        make=functools.partial(blueprint.member, blueprint.population(), 0),
        make_loop=_make_loop,
        resume=resume,
        progress=progress,
        reporter=reporter,
        request=request,
    )


def run_population(
    experiments: Sequence[Experiment],
    outs: Sequence[str | os.PathLike[str]],
    *,
    resume: Sequence[bool] | None = None,
    reporters: Sequence[report.Reporter] | None = None,
    requests: Sequence[Mapping[str, Any] | None] | None = None,
) -> list[Result | Exception]:
    """Runs experiments that differ in seeds and numbers of their config as one program.

    Each is a run of its own, in a directory of its own, and learns what it learns alone, but for
    rounding. One that fails or ends early leaves the others. The first SIGINT or SIGTERM has all
    save a checkpoint and end, where this is the main thread.

    Args:
      experiments: at least one. The first one's environments and networks are those of all.
      outs: directory of each.
      resume: which of them go on from the newest checkpoint; None: none does.
      reporters: where the words of each go; closed as it ends. None: nowhere.
      requests: what the `config.json` of each shall say; None: what the experiments do.

    Returns:
      Of each what it came to, or the error that ended it (as of `launch.run`).

    Raises:
      RequestError: if they cannot be one program.
    """
    for experiment in experiments:
        require_experiment(experiment)
    size = len(experiments)
    blueprint = Blueprint(experiments)
    population, stop = blueprint.population(), signals.Stop()
    ended: list[Result | Exception] = [RequestError("it was not begun.")] * size

    def live(index: int) -> None:
        try:
            ended[index] = train(
                experiments[index],
                outs[index],
                kind="compiled",
                make=functools.partial(blueprint.member, population, index),
                make_loop=_make_loop,
                resume=bool(resume and resume[index]),
                progress=False,
                reporter=reporters[index] if reporters else None,
                request=requests[index] if requests else None,
                stop=stop,
            )
        except Exception as error:
            ended[index] = error
        finally:
            population.leave(index)
            if reporters:
                reporters[index].close()

    threads = [threading.Thread(target=live, args=(index,), daemon=True) for index in range(size)]
    with signals.caught(stop):
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    return ended


def _make_loop(experiment: Experiment, run: RunLifecycle, made: Components) -> CompiledLoop:
    if experiment.budget > _MOST_STEPS:
        raise RequestError(
            f"--steps is {experiment.budget:,}; a compiled run counts {_MOST_STEPS:,} at the most."
        )
    replay: Any = made.replay
    return CompiledLoop(
        made.actor.member,
        replay,
        actor_steps=run.before.get("actor_steps", 0),
        episodes=run.before.get("episodes", 0),
    )
