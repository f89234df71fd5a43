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
      record: True: the answers are kept in the checkout of this package. Seeds of what is kept
        there and was asked for alike are not run again.

    Raises:
      RequestError: if the answers are to be kept, and this is no checkout.
      RunError: if a scale differs from the first, or is not shown to equal it.
    """
    from ..comparison import page  # Who asks for JSON alone needs no pictures.

    commit = ledger.commit() if record else None  # Before runs that may take hours.
    before = _before(request) if record else None
    reporter = report.for_stderr() if as_json else report.for_stream()
    try:
        if before is not None:
            commits = ", ".join(before.commits)
            reporter.line(f"seeds that are kept are not run again; they are of {commits}")
        found = conduct(request, out, reporter, None if before is None else before.figures())
    finally:
        reporter.close()
    if as_json:
        print((out / outcome.FILE).read_text(), end="")
    else:
        print("\n".join(outcome.lines(found)))
        files = [out / outcome.FILE, page.write(request, out, found)]
        print(f"see {' and '.join(str(one) for one in files if one is not None)}")
    if commit is not None:
        print(f"kept in {_kept(request, out, commit, before).write()}", file=sys.stderr)
    failure = outcome.failures(found, request.first)
    if failure:
        raise RunError(failure)
    return 0


def _before(request: ComparisonRequest) -> answers.KeptAnswers | None:
    """The answers that are kept of the comparison; None: none, or it was asked for otherwise."""
    kept = answers.find(request.recipe.agent, request.recipe.env, request.first)
    if kept is None or kept.request is None or request.difference(kept.request):
        return None
    return kept


def _kept(
    request: ComparisonRequest,
    out: pathlib.Path,
    commit: str,
    before: answers.KeptAnswers | None,
) -> answers.KeptAnswers:
    found = json.loads((out / outcome.FILE).read_text())
    if before is not None and before.outcome["figures"] == found["figures"]:
        commit = before.commit  # Nothing ran.
    return answers.KeptAnswers(
        agent=request.recipe.agent,
        env=request.recipe.env,
        first=request.first,
        command=_command(request),
        commit=commit,
        versions=found.pop("versions"),
        outcome=found,
        request=json.loads(json.dumps(request.to_json())),
        earlier=() if before is None else before.commits,
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
