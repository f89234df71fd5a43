"""Comparisons, begun or gone on with, and what is told of them."""

from __future__ import annotations

import pathlib

from ...launch.errors import RunError
from ...launch.logging import report
from ..comparison import outcome
from ..comparison.conduct import conduct
from ..comparison.request import ComparisonRequest


def run(request: ComparisonRequest, out: pathlib.Path, *, as_json: bool = False) -> int:
    """Runs what is left of a comparison and prints its answers.

    Raises:
      RunError: if a scale differs from the first, or is not shown to equal it.
    """
    from ..comparison import page  # Who asks for JSON alone needs no pictures.

    reporter = report.for_stderr() if as_json else report.for_stream()
    try:
        found = conduct(request, out, reporter)
    finally:
        reporter.close()
    if as_json:
        print((out / outcome.FILE).read_text(), end="")
    else:
        print("\n".join(outcome.lines(found)))
        print(f"see {out / outcome.FILE} and {page.write(request, out, found)}")
    failure = outcome.failures(found, request.first)
    if failure:
        raise RunError(failure)
    return 0
