"""`troupe train AGENT --env ID`"""

from __future__ import annotations

import argparse
import pathlib
from collections.abc import Sequence
from typing import Any

from ...tuned import Tuned
from .. import asking, running, training
from ..parser import Commands, count


def register(commands: Commands) -> None:
    parser = commands.add("train", "train an agent on an environment", train)
    parser.add_argument("--out", metavar="DIR", help="directory of the run; default: one in runs/")
    parser.add_argument(
        "--seeds",
        type=count,
        metavar="N",
        help="as many runs, from --seed on; with --launch compiled they are one program. "
        "--config.FIELD A,B,C runs every value of a number",
    )
    parser.add_argument(
        "--parallel",
        type=count,
        metavar="P",
        help="of several runs, processes at the same time; default: 1, and no further process",
    )
    training.add_flags(parser, commands.arguments)


def train(options: argparse.Namespace, settings: Sequence[Tuned]) -> int:
    several, options.overrides = _split(options)
    recipe = training.recipe(options, settings)
    if several or options.seeds is not None or options.parallel is not None:
        from ...grid import conduct
        from ...grid.request import GridRequest
        from .. import grids

        request = GridRequest(recipe, several, options.seeds or 1, options.parallel or 1)
        conduct.check(request)
        out = pathlib.Path(options.out or asking.free_directory(recipe, "grid-"))
        request.write(out)
        return grids.run(request, out)
    return running.run(recipe, options.out or asking.free_directory(recipe), resume=False)


def _split(options: argparse.Namespace) -> tuple[dict[str, list[Any]], dict[str, Any]]:
    """Divides settings into numbers with several values and all others."""
    if not any("," in str(value) for value in options.overrides.values()):
        return {}, options.overrides  # As nearly always: the agent need not be found yet.
    from ....launch.specification import origins
    from ...grid.request import split

    return split(origins.find_builder(options.agent).config_class, options.overrides)
