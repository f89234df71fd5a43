"""Runs of one recipe, a seed each, and the figures that they come to."""

from __future__ import annotations

import json
import pathlib

from ...launch.errors import RequestError
from ...launch.files.directory import RunDirectory
from ...launch.logging.report import Reporter
from ...launch.specification.recipe import Recipe
from ...launch.specification.stored import engine
from ..grid import conduct as grid
from ..grid.request import GridRequest
from ..returns.figures import Figures, first_difference


def run(
    recipe: Recipe, seeds: int, folder: pathlib.Path, reporter: Reporter, parallel: int = 1
) -> list[Figures]:
    """Runs what is left of so many seeds, and returns the figures of each.

    Args:
      recipe: its seed is the first.
      seeds: how many there are.
      folder: of the runs, each in a directory that its seed names.
      reporter: where words go.
      parallel: processes at the same time, as of a grid.

    Raises:
      RequestError: if a run cannot be as asked, or one that is there is of other settings.
      RunError: if runs failed.
      Interrupted: if a signal came; checkpoints were saved.
    """
    grid.conduct(GridRequest(recipe, {}, seeds, parallel), folder, reporter)
    clock, asked = recipe.experiment().clock, json.loads(json.dumps(recipe.to_json()))
    found = []
    for seed in range(recipe.seed, recipe.seed + seeds):
        directory = RunDirectory(folder / str(seed))
        config = directory.read_config()
        different = first_difference({**config, "engine": engine(config)}, {**asked, "seed": seed})
        if different:
            raise RequestError(
                f"{directory.path} holds a run of other settings: {different}; name another --out."
            )
        result = directory.read_result()
        assert result is not None
        found.append(Figures.of(result, clock, str(directory.path)))
    return found
