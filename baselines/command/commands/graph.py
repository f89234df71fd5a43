"""`troupe graph AGENT --env ID`"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from ...tuned import Tuned
from .. import asking
from ..parser import Commands, add_data, add_roles, add_task


def register(commands: Commands) -> None:
    parser = commands.add("graph", "draw the roles of a distributed run and who calls whom", graph)
    add_task(parser)
    parser.add_argument(
        "--save", default="program.png", metavar="FILE", help="default: program.png"
    )
    add_data(parser)
    add_roles(parser)


def graph(options: argparse.Namespace, settings: Sequence[Tuned]) -> int:
    roles = asking.roles(options)
    tuned = asking.tuned_for(options, settings)
    recipe = asking.recipe(options, tuned, launch="processes", roles=roles)
    from ....launch.distributed.deploy import deploy
    from ....launch.distributed.drawing import draw

    print(draw(deploy(recipe.experiment(), "runs", **roles), options.save))
    return 0
