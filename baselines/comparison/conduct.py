"""Conducts a comparison: seeds are added until every scale has its answer."""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Mapping, Sequence

from ...launch import running
from ...launch.errors import Interrupted, RequestError
from ...launch.logging.report import Reporter
from .. import together
from ..returns.figures import Figures, stacked
from . import elsewhere, outcome, runs
from .request import ComparisonRequest
from .verdicts import UNDECIDED, Verdict, judge


def check(request: ComparisonRequest) -> None:
    """Raises ValueError where a run of any scale cannot begin."""
    for number, (scale, recipe) in enumerate(request.recipes().items()):
        try:
            together.check(recipe)
            running.runner(recipe.launch, recipe.roles, recipe.engine)
        except ValueError as error:
            if number == 0:
                raise  # It may be of the agent or the environment, and so of all scales.
            raise RequestError(f"the scale {scale!r}: {error}") from error
        if request.against is not None:
            elsewhere.check(recipe)
    if request.against is not None:
        with request.against.installed():
            pass


def conduct(
    request: ComparisonRequest,
    out: pathlib.Path,
    reporter: Reporter,
    kept: Mapping[str, Sequence[Figures]] | None = None,
) -> dict[str, Verdict]:
    """Runs what is left of a comparison, look by look.

    A look is decided by what its runs came to alone: one that was stopped, or killed, takes the
    looks that it would have taken. Runs of a scale end with its answer.

    Args:
      request: what is asked.
      out: directory of the comparison, which holds the request.
      reporter: where words go.
      kept: figures of the first seeds of scales, which are not run again.

    Returns:
      By scale that is compared with another.

    Raises: as of `runs.run`.
    """
    figures: dict[str, list[Figures]] = {}
    found: dict[str, Verdict] = {}
    for seeds in request.rule.looks(request.seeds):
        left = [one for one in request.others if one not in found or found[one].answer == UNDECIDED]
        if not left:
            break
        for name in (request.first, *left):
            known = (kept or {}).get(name, ())[:seeds]
            figures[name] = _figures(request, name, seeds, out, reporter, known)
        returns = {name: stacked(one) for name, one in figures.items()}
        found = judge(returns, request.rule, request.paired())
        outcome.write(out, request, figures, found)
        for line in outcome.lines(found):
            reporter.line(f"after {seeds} seeds: {line}")
    return found


def _figures(
    request: ComparisonRequest,
    name: str,
    seeds: int,
    out: pathlib.Path,
    reporter: Reporter,
    known: Sequence[Figures],
) -> list[Figures]:
    """The figures of a scale's first seeds, which are run, known, or those of the reference."""
    if request.reference is not None and name == request.first:
        first = request.recipe.seed
        return [request.reference.seeds[str(seed)] for seed in range(first, first + seeds)]
    there = request.against if name == request.first else None
    scale = name if there is None else request.scales[0]
    recipe, folder = request.recipes()[scale], out / request.folder(name)
    run = runs.run if there is None else there.run
    # Seeds that ran here are taken from here, so that the same command goes on.
    here = (i for i in range(len(known)) if (folder / str(recipe.seed + i)).exists())
    known = [*known][: next(here, None)]
    if len(known) == seeds:
        return known
    left = dataclasses.replace(recipe, seed=recipe.seed + len(known))
    try:
        found = run(left, seeds - len(known), folder, reporter, request.parallel)
        return [*known, *found]
    except Interrupted as stop:
        words = f"stopped; go on with `troupe resume {out}`."
        raise Interrupted(stop.signal_number, words) from stop
