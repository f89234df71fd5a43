"""Runs with several seeds or settings, and what is told of them."""

from __future__ import annotations

import pathlib

import numpy as np

from ...launch.errors import RunError
from ...launch.logging import report
from ..grid import summary
from ..grid.conduct import conduct
from ..grid.request import GridRequest
from . import running


def run(request: GridRequest, out: pathlib.Path) -> int:
    """Runs what is left of a grid and prints what it came to.

    Raises:
      RunError: if runs failed, or the mean return of a setting is below the target.
    """
    reporter = report.for_stream()
    try:
        conduct(request, out, reporter)
    finally:
        reporter.close()
        found = summary.returns(request, out)
        if any(found.values()):
            done = [
                out / one.name
                for one in request.runs()
                if (out / one.name / "result.json").exists()
            ]
            print(summary.table(found))
            print(f"see {out} and {running.draw(done, out)}")
    target = request.recipe.evaluation.target_return
    for words, values in found.items():
        if target is not None and np.mean(values) < target:
            raise RunError(
                f"{words + ': ' if words else ''}the mean return of {np.mean(values):.1f} is below "
                f"the target of {target:g}."
            )
    return 0
