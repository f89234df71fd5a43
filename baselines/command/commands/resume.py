"""`troupe resume DIR`"""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Sequence

from ....launch.files.directory import RunDirectory
from ....launch.roles import KINDS
from ....launch.specification import stored
from ....launch.specification.begun import asked_of
from ...tuned import Tuned
from .. import asking, running
from ..parser import Commands, add_cluster, add_devices, add_partition, add_plan, count


def register(commands: Commands) -> None:
    parser = commands.add("resume", "go on with a run from its newest checkpoint", resume)
    parser.add_argument("run", metavar="DIR", help="directory of the run")
    parser.add_argument("--steps", type=count, metavar="N", help="a new budget, in what it was in")
    parser.add_argument("--launch", choices=KINDS, help="another kind of launch than before")
    parser.add_argument("--actors", type=count, metavar="N", help="more or fewer than before")
    parser.add_argument("--listen", metavar="ADDRESS", help="another than before (see train)")
    add_cluster(parser)
    add_devices(parser, None)
    add_partition(parser)
    add_plan(parser)


def resume(options: argparse.Namespace, settings: Sequence[Tuned]) -> int:
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
    where = asking.given(actor_device=options.actor_device, learner_device=options.learner_device)
    kind = options.launch or recipe.launch
    roles = {**(recipe.roles if kind != KINDS[0] else {}), **changed}  # One process has none.
    if options.launch is not None:
        where["engine"] = None  # The one of that launch.
    recipe = dataclasses.replace(recipe, launch=kind, roles=roles, **spread, **where)
    return running.run(recipe, options.run, resume=True)
