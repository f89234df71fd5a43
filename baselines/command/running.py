"""Running a recipe, and telling what came of it."""

from __future__ import annotations

import pathlib
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ...launch.errors import RunError
from ...launch.logging import report
from ...launch.specification.begun import Begun
from ...launch.specification.recipe import Recipe

if TYPE_CHECKING:
    from ...launch.running import Launcher


def run(recipe: Recipe | Begun, out: str | pathlib.Path, *, resume: bool) -> int:
    """Runs a recipe to its end and prints what it came to.

    Raises:
      RunError: if it failed, or the final return is below the target.
    """
    runner = runner_of(recipe)
    experiment = recipe.experiment()
    reporter = report.for_stream()
    try:
        if not resume:
            from ...launch import transfer

            resume = transfer.begin_if_asked(recipe, out, reporter)
        result = runner(experiment, out, resume=resume, reporter=reporter, request=recipe.to_json())
    finally:
        reporter.close()
    final = result.evaluation[-1]
    clock = experiment.clock
    count = f"{getattr(result, clock.name):,} {clock.words}"
    print(
        f"return {final['mean']:.1f} +- {final['std']:.1f} over {final['episodes']} episodes after "
        f"{count} in {report.duration(result.wall_seconds)}; "
        f"see {pathlib.Path(out, 'result.json')} and {draw([out], pathlib.Path(out))}"
    )
    if result.reached is False:
        raise RunError(
            f"the evaluation return of {final['mean']:.1f} is below the target of "
            f"{result.target_return:g}."
        )
    return 0


def runner_of(recipe: Recipe | Begun) -> Launcher:
    """Returns what runs experiments in the recipe's kind of launch."""
    from ...launch.running import runner

    return runner(recipe.launch, recipe.roles, recipe.engine)


def draw(
    runs: Sequence[str | pathlib.Path], folder: pathlib.Path, save: str | None = None
) -> pathlib.Path:
    """Draws the curves of runs, into a folder where no file is named."""
    from ...launch.logging.plot import plot

    return plot(runs, save or folder / "curve.png")
