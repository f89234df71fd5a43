"""The page of a comparison: its answers, and the report of its runs."""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Iterator, Mapping

from ..report import page
from ..report.runs import Entry, collect
from .outcome import DIGITS, needs
from .request import AGAINST, ComparisonRequest
from .verdicts import LEVEL, Verdict

FOLDER = "report"


def write(
    request: ComparisonRequest, out: pathlib.Path, found: Mapping[str, Verdict]
) -> pathlib.Path | None:
    """Writes the page into the directory of a comparison, and returns its file.

    Returns None where all seeds are kept of other machines: there are no curves to show.

    Raises:
      RequestError: if the runs cannot be read or the page cannot be written.
    """

    def entries_of(*names: str) -> list[Entry]:
        folders = [out / name for name in names]
        return collect([folder for folder in folders if folder.exists()])

    entries = entries_of(*map(request.folder, request.scales))
    if request.against is not None:
        entries += [
            dataclasses.replace(one, name=f"{one.name}, {request.against.name}")
            for one in entries_of(AGAINST)
        ]
    if not entries:
        return None
    title = f"{request.recipe.agent} on {request.recipe.env}: {', '.join(request.others)}"
    return page.write(entries, out / FOLDER, title, list(_preface(request, found)))


def _preface(request: ComparisonRequest, found: Mapping[str, Verdict]) -> Iterator[str]:
    rule, first = request.rule, request.first
    ends = (
        f", from {request.random:.1f} of random actions to the target of {request.target:g}"
        if request.random is not None
        else ""
    )
    yield (
        f"Returns are compared with those of `{first}`. The margin is {rule.margin:.4g}, the range "
        f"of returns {rule.span:.4g}{ends}. A look came after every {rule.batch} seeds. Of all "
        f"scales and looks together, at most {LEVEL:.0%} of comparisons call equivalent what "
        f"differs by the margin, and at most {LEVEL:.0%} different what is equal."
    )
    yield ""
    yield from page.table([row for scale, one in found.items() for row in _rows(scale, one)])


def _rows(scale: str, verdict: Verdict) -> Iterator[dict[str, str]]:
    """A row for each metric; what they have in common stands in the first."""
    answer, seeds = verdict.answer + needs(verdict), f"{verdict.seeds}"
    for number, (metric, one) in enumerate(verdict.metrics.items()):
        yield {
            "scale": "" if number else f"`{scale}`",
            "answer": "" if number else answer,
            "seeds": "" if number else seeds + " in pairs" * verdict.paired,
            "metric": metric,
            "mean": f"{one.mean:.{DIGITS}g}",
            "difference": f"{one.difference:+.{DIGITS}g}",
            "must lie within the margin": f"{one.low:+.{DIGITS}g} to {one.high:+.{DIGITS}g}",
            "p if unequal": f"{one.p_equivalent:.2g}",
            "p if equal": f"{one.p_different:.2g}",
        }
