"""Comparisons, begun or gone on with, and what is told of them."""

from __future__ import annotations

import json
import pathlib
import shlex
import sys

from ...launch.errors import RunError
from ...launch.logging import report
from ..comparison import outcome
from ..comparison.conduct import conduct
from ..comparison.request import ComparisonRequest
from ..returns import answers, ledger


def run(
    request: ComparisonRequest, out: pathlib.Path, *, as_json: bool = False, record: bool = False
) -> int:
    """Runs what is left of a comparison and prints its answers.

    Args:
      request: what is asked.
      out: directory of the comparison.
      as_json: True: the outcome is printed as JSON.
      record: True: the answers are kept in the checkout of this package.

    Raises:
      RequestError: if the answers are to be kept, and this is no checkout.
      RunError: if a scale differs from the first, or is not shown to equal it.
    """
    from ..comparison import page  # Who asks for JSON alone needs no pictures.

    commit = ledger.commit() if record else None  # Before runs that may take hours.
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
    if commit is not None:
        print(f"kept in {_kept(request, out, commit).write()}", file=sys.stderr)
    failure = outcome.failures(found, request.first)
    if failure:
        raise RunError(failure)
    return 0


def _kept(request: ComparisonRequest, out: pathlib.Path, commit: str) -> answers.KeptAnswers:
    found = json.loads((out / outcome.FILE).read_text())
    task = request.recipe.agent, request.recipe.env
    return answers.KeptAnswers(
        *task, request.first, _command(request), commit, found.pop("versions"), found
    )


def _command(request: ComparisonRequest) -> str:
    """The command that makes a comparison again."""
    from ..report import again

    recipe = request.recipe
    words = again.words(recipe)
    assert words is not None  # All that a comparison takes, the command line of a run takes too.
    words += ["--margin", f"{request.rule.margin:.6g}", "--batch", str(request.rule.batch)]
    if request.target is not None:
        words += ["--target", f"{request.target:g}"]
    if request.reference is not None:
        words += ["--ledger"]
    if request.against is not None:
        words += ["--against", request.against.commit or request.against.python]
    words += ["--seeds", str(request.seeds), "--seed", str(recipe.seed)]
    return f"troupe compare {shlex.join([*words, '--scales', *request.scales])} --out DIR"
