"""Comparisons, begun or gone on with, and what is told of them."""

from __future__ import annotations

import dataclasses
import json
import pathlib
import shlex
import sys
from collections.abc import Sequence

from ...launch.errors import RunError
from ...launch.experiment import Evaluation
from ...launch.logging import report
from ..comparison import outcome
from ..comparison.conduct import conduct
from ..comparison.request import ComparisonRequest
from ..returns import answers, ledger
from ..returns.figures import Figures
from ..settings import find
from ..tuned import Tuned


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
    before = _before(request) if record else []
    reporter = report.for_stderr() if as_json else report.for_stream()
    try:
        if before:
            commits = ", ".join(_commits(before))
            reporter.line(f"seeds that are kept are not run again; they are of {commits}")
        found = conduct(request, out, reporter, _known(before))
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


def _before(request: ComparisonRequest) -> list[answers.KeptAnswers]:
    """The answers that are kept of comparisons of the same runs, at any of the same scales."""
    asked = json.loads(json.dumps(request.to_json()))

    def is_alike(kept: answers.KeptAnswers) -> bool:
        # Code of another commit has figures of its own.
        names = "recipe", "reference", "against"
        return kept.request is not None and all(
            kept.request.get(name) == asked.get(name) for name in names
        )

    found = answers.find(request.recipe.agent, request.recipe.env)
    scales = {request.first, *request.scales}
    return [one for one in found if is_alike(one) and not scales.isdisjoint(one.scales)]


def _known(before: Sequence[answers.KeptAnswers]) -> dict[str, list[Figures]]:
    """By scale the figures of its first seeds, of whichever has the most."""
    found: dict[str, list[Figures]] = {}
    for one in before:
        for scale, figures in one.figures().items():
            found[scale] = max(found.get(scale, []), figures, key=len)
    return found


def _commits(before: Sequence[answers.KeptAnswers]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(commit for one in before for commit in one.commits))


def _kept(
    request: ComparisonRequest,
    out: pathlib.Path,
    commit: str,
    before: Sequence[answers.KeptAnswers],
) -> answers.KeptAnswers:
    found, known = json.loads((out / outcome.FILE).read_text()), _known(before)
    had = {scale: [dataclasses.asdict(seed) for seed in seeds] for scale, seeds in known.items()}
    commits = _commits(before)
    if all(seeds == had.get(scale, [])[: len(seeds)] for scale, seeds in found["figures"].items()):
        commit = commits[-1]  # Nothing ran.
    return answers.KeptAnswers(
        agent=request.recipe.agent,
        env=request.recipe.env,
        first=request.first,
        command=_command(request),
        commit=commit,
        versions=found.pop("versions"),
        outcome=found,
        request=json.loads(json.dumps(request.to_json())),
        earlier=commits,
    )


def _command(request: ComparisonRequest) -> str:
    """The command that makes a comparison again."""
    from ..report import again

    recipe = request.recipe
    if request.reference is not None:  # Its evaluations are the row's: no flag asks for them.
        tuned = find(recipe.agent, recipe.env) or Tuned(recipe.agent, recipe.env)
        usual = Evaluation(every=tuned.evaluation_every)
        recipe = dataclasses.replace(recipe, evaluation=usual)
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
