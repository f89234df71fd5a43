"""Episodes that have ended, and the numbers that environments give beside their rewards."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

INFO = "info/"
"""Prefix of the names of these numbers in rows of metrics and in evaluations."""
WIN_RATE, WIN_RATE_OLDER = INFO + "win_rate", INFO + "win_rate_older"
"""Of games: shares of an evaluation's episodes that were won, against the opponent that evaluations
have, and against an earlier policy of the same run."""


class EndedEpisode(NamedTuple):
    """An episode that has ended."""

    total: float
    """Sum of its rewards."""
    length: int
    """Its steps."""
    info: Mapping[str, float] = {}
    """Numbers beside its last step (`environments.Vector.episode_info`)."""


def mean_info(infos: Iterable[Mapping[str, float]]) -> dict[str, float]:
    """Returns the mean of each number over the episodes that have it, by its name in rows."""
    found: dict[str, list[float]] = {}
    for info in infos:
        for name, value in info.items():
            found.setdefault(INFO + name, []).append(value)
    return {name: sum(values) / len(values) for name, values in found.items()}


def success_text(summary: Mapping[str, Any]) -> str:
    """Returns the shares of successes or of games won in an evaluation, as the end of a list; "":
    it has none."""
    found = {name.removeprefix(INFO): value for name, value in summary.items() if INFO in name}
    return "".join(
        f", {name.removeprefix('is_').replace('_', ' ')} {value:.2f}"
        for name, value in found.items()
        if "success" in name or name.startswith("win_rate")
    )
