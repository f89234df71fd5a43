"""`troupe train AGENT --env ID`"""

from __future__ import annotations

import argparse
import itertools
import pathlib
import re
from collections.abc import Sequence

from ....launch.request.recipe import Recipe
from ...tuned import Tuned
from .. import running, training
from ..parser import Commands


def register(commands: Commands) -> None:
    parser = commands.add("train", "train an agent on an environment", train)
    parser.add_argument("--out", metavar="DIR", help="directory of the run; default: one in runs/")
    training.add_flags(parser, commands.arguments)


def train(options: argparse.Namespace, settings: Sequence[Tuned]) -> int:
    recipe = training.recipe(options, settings)
    return running.run(recipe, options.out or _free_directory(recipe), resume=False)


def _free_directory(recipe: Recipe) -> pathlib.Path:
    """The first of runs/AGENT-ENV-SEED, runs/AGENT-ENV-SEED-2 and so on that is not there."""
    words = (recipe.agent.rpartition(":")[2], recipe.env, str(recipe.seed))
    name = "-".join(re.sub(r"[^\w.-]+", "_", word) for word in words)
    names = itertools.chain([name], (f"{name}-{number}" for number in itertools.count(2)))
    return next(path for one in names if not (path := pathlib.Path("runs", one)).exists())
