"""Runs a comparison: seeds are added until every scale has its answer."""

from __future__ import annotations

import json
import pathlib
from collections.abc import Mapping, Sequence

from ...launch import running
from ...launch.errors import Interrupted, RequestError
from ...launch.files.directory import RunDirectory
from ...launch.logging.report import Reporter
from ...launch.specification.recipe import Recipe
from ...launch.specification.stored import engine
from .. import together
from ..grid import conduct as grid
from ..grid.request import GridRequest
from . import outcome
from .differences import first_difference
from .figures import Figures, stacked
from .request import ComparisonRequest
from .verdicts import UNDECIDED, Verdict, judge


def check(request: ComparisonRequest) -> None:
    """Raises ValueError where a run of any scale cannot begin."""
    for recipe in request.recipes().values():
        together.check(recipe)
        running.runner(recipe.launch, recipe.roles, recipe.engine)


def conduct(
    request: ComparisonRequest, out: pathlib.Path, reporter: Reporter
) -> dict[str, Verdict]:
    """Runs what is left of a comparison, look by look.

    A look is decided by what its runs came to alone: one that was stopped, or killed, takes the
    looks that it would have taken. Runs of a scale end with its answer.

    Args:
      request: what is asked.
      out: directory of the comparison, which holds the request.
      reporter: where words go.

    Returns:
      By scale but the first.

    Raises:
      RequestError: if a run cannot be as asked, or is of other settings.
      RunError: if runs failed.
      Interrupted: if a signal came; checkpoints were saved.
    """
    recipes = request.recipes()
    runs = {scale: out / request.folder(scale) for scale in recipes}
    figures: dict[str, list[Figures]] = {scale: [] for scale in recipes}
    found: dict[str, Verdict] = {}
    first, *others = recipes
    for seeds in request.rule.looks(request.seeds):
        left = [one for one in others if one not in found or found[one].answer == UNDECIDED]
        if not left:
            break
        for scale in (first, *left):
            _run(recipes[scale], seeds, request.parallel, runs[scale], out, reporter)
            figures[scale] += _read(recipes[scale], range(len(figures[scale]), seeds), runs[scale])
        returns = {scale: stacked(one) for scale, one in figures.items()}
        found = judge(returns, request.rule, request.paired())
        outcome.write(out, request, figures, found)
        for line in outcome.lines(found):
            reporter.line(f"after {seeds} seeds: {line}")
    return found


def _run(
    recipe: Recipe,
    seeds: int,
    parallel: int,
    folder: pathlib.Path,
    out: pathlib.Path,
    reporter: Reporter,
) -> None:
    """Runs as many seeds of a scale as are not done."""
    try:
        grid.conduct(GridRequest(recipe, {}, seeds, parallel), folder, reporter)
    except Interrupted as stop:
        raise Interrupted(
            stop.signal_number, f"stopped; go on with `troupe resume {out}`."
        ) from stop


def _read(recipe: Recipe, numbers: Sequence[int], folder: pathlib.Path) -> list[Figures]:
    """Reads the figures of runs, which must be as the recipe asks."""
    clock, asked = recipe.experiment().clock, json.loads(json.dumps(recipe.to_json()))
    found = []
    for number in numbers:
        directory = RunDirectory(folder / str(recipe.seed + number))
        asked["seed"] = recipe.seed + number
        _check_settings(directory, asked)
        result = directory.read_result()
        assert result is not None
        found.append(Figures.of(result, clock, str(directory.path)))
    return found


def _check_settings(directory: RunDirectory, asked: Mapping[str, object]) -> None:
    config = directory.read_config()
    different = first_difference({**config, "engine": engine(config)}, asked)
    if different:
        raise RequestError(
            f"{directory.path} holds a run of other settings: {different}; name another --out."
        )
