"""`troupe resume DIR`"""

from __future__ import annotations

import argparse
import dataclasses
import pathlib
from collections.abc import Sequence

from ....launch.errors import RequestError
from ....launch.files.directory import RunDirectory
from ....launch.roles import KINDS
from ....launch.specification import stored
from ....launch.specification.begun import asked_of
from ...grid.request import FILE as GRID
from ...tuned import Tuned
from .. import asking, running
from ..parser import (
    Commands,
    add_cluster,
    add_devices,
    add_partition,
    add_plan,
    add_sampler,
    count,
)

_NO_FLAGS = ("overrides", "environment", "config_file")
"""Fields of every command's options that are no flags of `resume`."""


def register(commands: Commands) -> None:
    parser = commands.add("resume", "go on with a run from its newest checkpoint", resume)
    parser.add_argument(
        "run", metavar="DIR", help="directory of the run, or of several that were begun together"
    )
    parser.add_argument("--steps", type=count, metavar="N", help="a new budget, in what it was in")
    parser.add_argument("--launch", choices=KINDS, help="another kind of launch than before")
    parser.add_argument("--actors", type=count, metavar="N", help="more or fewer than before")
    parser.add_argument("--listen", metavar="ADDRESS", help="another than before (see train)")
    add_cluster(parser)
    add_devices(parser, None)
    add_partition(parser)
    add_sampler(parser)
    add_plan(parser)


def resume(options: argparse.Namespace, settings: Sequence[Tuned]) -> int:
    if pathlib.Path(options.run, GRID).exists():
        return _resume_grid(options)
    from ...comparison.request import FILE as COMPARISON

    if pathlib.Path(options.run, COMPARISON).exists():
        return _resume_comparison(options)
    recipe = asked_of(RunDirectory(options.run))
    if options.steps is not None:
        recipe = dataclasses.replace(recipe, steps=options.steps)
    changed = {
        **asking.given(actors=options.actors, listen=options.listen),
        **asking.cluster(options),
    }
    spread = asking.given(**asking.partition(options))
    if "plan" in spread:
        spread = {**dict.fromkeys(stored.PLACEMENT), "plan": spread["plan"]}
    elif spread:
        spread["plan"] = None  # Another placement is planned anew.
    if "sampler_mesh" in (sampler := asking.sampler(options)):
        sampler = {"sampler_schedule": None, **sampler}  # The other mesh has other axes.
    where = asking.given(actor_device=options.actor_device, learner_device=options.learner_device)
    kind = options.launch or recipe.launch
    roles = {**(recipe.roles if kind != KINDS[0] else {}), **changed}  # One process has none.
    if options.launch is not None:
        where["engine"] = None  # The one of that launch.
    recipe = dataclasses.replace(recipe, launch=kind, roles=roles, **spread, **sampler, **where)
    return running.run(recipe, options.run, resume=True)


def _resume_grid(options: argparse.Namespace) -> int:
    """Goes on with runs that were begun together."""
    from ...grid.request import read
    from .. import grids

    _check_flags(options, "steps", advice=" (with --steps if you like)")
    out = pathlib.Path(options.run)
    request = read(out)
    if options.steps is not None:
        recipe = dataclasses.replace(request.recipe, steps=options.steps)
        request = dataclasses.replace(request, recipe=recipe)
        request.rewrite(out)
    return grids.run(request, out)


def _resume_comparison(options: argparse.Namespace) -> int:
    """Goes on with a comparison."""
    from ...comparison.request import read
    from .. import comparisons

    _check_flags(options)
    out = pathlib.Path(options.run)
    return comparisons.run(read(out), out)


def _check_flags(options: argparse.Namespace, *allowed: str, advice: str = "") -> None:
    """Raises RequestError where a flag of one run was given for several."""
    for name, value in vars(options).items():
        if name not in ("run", "command", "debug", *allowed, *_NO_FLAGS) and value is not None:
            raise RequestError(
                f"--{name.replace('_', '-')} is of one run; {options.run} holds several, which go "
                f"on as they were begun{advice}."
            )
