"""The outcome of a comparison: `comparison.json`, and lines of words."""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

from ...launch.files.directory import RunDirectory
from ...launch.files.result import versions
from ..returns.figures import Figures
from .request import ComparisonRequest
from .verdicts import DIFFERENT, EQUIVALENT, UNDECIDED, MetricDifference, Verdict

FILE = "comparison.json"
DIGITS = 4


def to_json(
    request: ComparisonRequest,
    figures: Mapping[str, Sequence[Figures]],
    found: Mapping[str, Verdict],
) -> dict[str, Any]:
    """Returns all of it: the rule, the looks, every seed's figures and the answers."""
    return {
        "rule": dataclasses.asdict(request.rule),
        "random": request.random,
        "target": request.target,
        "looks": list(request.rule.looks(max(map(len, figures.values())))),
        "figures": {
            scale: [dataclasses.asdict(one) for one in some] for scale, some in figures.items()
        },
        "verdicts": {scale: dataclasses.asdict(one) for scale, one in found.items()},
        "versions": versions(),
    }


def write(
    folder: pathlib.Path,
    request: ComparisonRequest,
    figures: Mapping[str, Sequence[Figures]],
    found: Mapping[str, Verdict],
) -> None:
    """Writes `comparison.json`, in place of that of an earlier look."""
    RunDirectory(folder).write(folder / FILE, to_json(request, figures, found))


def lines(found: Mapping[str, Verdict]) -> list[str]:
    """Returns a line for each scale but the first."""
    width = max(map(len, found))
    return [f"{scale:<{width}}  {words(verdict)}" for scale, verdict in found.items()]


def words(verdict: Verdict) -> str:
    """Returns an answer with the figures that it rests on."""
    answer = verdict.answer + needs(verdict)
    shown = "; ".join(f"{name} {_estimate(one)}" for name, one in verdict.metrics.items())
    return f"{answer}, after {verdict.seeds} seeds{' in pairs' * verdict.paired}: {shown}"


def needs(verdict: Verdict) -> str:
    """Returns what an answer of too few seeds adds: the number that would do."""
    if verdict.answer != UNDECIDED:
        return ""
    if verdict.needed is None:
        return ": the spread is too large for any number; name a wider --margin"
    return f": {verdict.needed} would do if it is equal (--seeds {verdict.needed})"


def _estimate(one: MetricDifference) -> str:
    return (
        f"{one.difference:+.{DIGITS}g} (between {one.low:+.{DIGITS}g} and "
        f"{one.high:+.{DIGITS}g}; p = {one.p_equivalent:.2g} if unequal, {one.p_different:.2g} if "
        "equal)"
    )


def failures(found: Mapping[str, Verdict], first: str) -> str | None:
    """Says in one line which scales are not equivalent to the first; None: all are."""
    parts = []
    for answer, said in ((DIFFERENT, "differ from"), (UNDECIDED, "are not shown to equal")):
        names = [scale for scale, one in found.items() if one.answer == answer]
        if names:
            parts.append(f"the returns at {', '.join(names)} {said} those at {first}")
    assert parts or all(one.answer == EQUIVALENT for one in found.values())
    return f"{'; '.join(parts)}." if parts else None
