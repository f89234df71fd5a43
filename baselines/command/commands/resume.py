"""`troupe resume DIR`"""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Sequence

from ....launch.files.directory import RunDirectory
from ....launch.specification.begun import asked_of
from ...tuned import Tuned
from .. import asking, running
from ..parser import Commands, add_cluster, add_hosts, add_partition, count


def register(commands: Commands) -> None:
    parser = commands.add("resume", "go on with a run from its newest checkpoint", resume)
    parser.add_argument("run", metavar="DIR", help="directory of the run")
    parser.add_argument("--steps", type=count, metavar="N", help="a new budget, in what it was in")
    parser.add_argument("--actors", type=count, metavar="N", help="more or fewer than before")
    parser.add_argument("--listen", metavar="ADDRESS", help="another than before (see train)")
    add_hosts(parser)
    add_cluster(parser)
    add_partition(parser)


def resume(options: argparse.Namespace, settings: Sequence[Tuned]) -> int:
    recipe = asked_of(RunDirectory(options.run))
    if options.steps is not None:
        recipe = dataclasses.replace(recipe, steps=options.steps)
    changed = {
        **asking.given(actors=options.actors, listen=options.listen, hosts=options.hosts),
        **asking.cluster(options),
    }
    spread = asking.given(**asking.partition(options))
    recipe = dataclasses.replace(recipe, roles={**recipe.roles, **changed}, **spread)
    return running.run(recipe, options.run, resume=True)
