"""A run whose loop is one program, from its first step to its result."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from .. import seeds
from ..errors import RequestError
from ..experiment import Experiment
from ..files.result import Result
from ..lifecycle import RunLifecycle
from ..local.components import Components
from ..local.run import train
from ..logging import report
from . import components
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
    return train(
        experiment,
        out,
        kind="compiled",
        make=components.make,
        make_loop=_make_loop,
        resume=resume,
        progress=progress,
        reporter=reporter,
        request=request,
    )


def _make_loop(experiment: Experiment, run: RunLifecycle, made: Components) -> CompiledLoop:
    if experiment.budget > _MOST_STEPS:
        raise RequestError(
            f"num_actor_steps is {experiment.budget:,}; a compiled run counts {_MOST_STEPS:,} at "
            "the most."
        )
    import jax

    replay: Any = made.replay
    return CompiledLoop(
        made.actor.running,
        replay,
        jax.random.key(seeds.derive(experiment.seed, "replay")),
        actor_steps=run.before.get("actor_steps", 0),
        episodes=run.before.get("episodes", 0),
    )
