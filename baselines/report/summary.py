"""The numbers of the page: results of entries in one environment, and in all of them."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np

from .. import statistics
from .runs import Entry


@dataclasses.dataclass(frozen=True)
class MeanOfSeeds:
    """An interquartile mean over seeds and the ends of its 95 % interval."""

    mean: float
    low: float
    high: float


@dataclasses.dataclass(frozen=True)
class Scaling:
    """Scales returns of an environment to 0 and 1, so that environments can be combined."""

    zero: float
    """The lowest evaluation of any run: that of a policy that has learned nothing."""
    one: float
    """The target, or where there is none the highest final evaluation."""

    def __call__(self, returns: np.ndarray) -> np.ndarray:
        return (returns - self.zero) / ((self.one - self.zero) or 1.0)


@dataclasses.dataclass(frozen=True)
class Together:
    """An entry over all environments that it has runs in."""

    name: str
    scores: tuple[np.ndarray, ...]
    """Scaled returns, [number of seeds] for each environment."""


def estimate(strata: Sequence[np.ndarray]) -> MeanOfSeeds:
    """The interquartile mean of all returns, of one environment or of several.

    Args:
      strata: returns by environment, [number of seeds].
    """
    low, high = statistics.interval(strata, statistics.pooled_mean)
    return MeanOfSeeds(float(statistics.pooled_mean(strata)), float(low), float(high))


def by_environment(entries: Sequence[Entry]) -> dict[str, list[Entry]]:
    """Entries of each environment, in order."""
    found: dict[str, list[Entry]] = {}
    for entry in entries:
        found.setdefault(entry.env, []).append(entry)
    return found


def scales(entries: Sequence[Entry]) -> dict[str, Scaling]:
    """The scale of each environment."""
    found = {}
    for env, some in by_environment(entries).items():
        means = [row["mean"] for one in some for seed in one.seeds for row in _rows(seed)]
        targets = [one.target for one in some if one.target is not None]
        best = max(targets, default=max(float(one.returns.max()) for one in some))
        found[env] = Scaling(min(means), best)
    return found


def together(entries: Sequence[Entry], scales: Mapping[str, Scaling]) -> list[Together]:
    """Those entries that have runs in every environment, of at least two."""
    names = list(dict.fromkeys(entry.name for entry in entries))
    found = []
    for name in names if len(scales) > 1 else []:
        mine = {entry.env: entry for entry in entries if entry.name == name}
        if set(mine) == set(scales):
            scores = tuple(scales[env](mine[env].returns) for env in scales)
            found.append(Together(name, scores))
    return found


def _rows(seed: object) -> list[Mapping[str, float]]:
    return seed.result["evaluation"]  # type: ignore[attr-defined]
