"""`troupe train AGENT --env ID`"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from ...tuned import Tuned
from .. import asking, running, training
from ..parser import Commands


def register(commands: Commands) -> None:
    parser = commands.add("train", "train an agent on an environment", train)
    parser.add_argument("--out", metavar="DIR", help="directory of the run; default: one in runs/")
    training.add_flags(parser, commands.arguments)


def train(options: argparse.Namespace, settings: Sequence[Tuned]) -> int:
    recipe = training.recipe(options, settings)
    return running.run(recipe, options.out or asking.free_directory(recipe), resume=False)
