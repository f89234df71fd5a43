"""Tests whether returns depend on the scale, with several seeds at each scale."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Mapping, Sequence

import numpy as np

from ..launch.errors import RequestError
from .statistics import interquartile_mean, interval, pooled_mean

_LEVEL = 0.05
_PERMUTATIONS = 20_000


@dataclasses.dataclass(frozen=True)
class Row:
    """The returns of the runs at one scale, compared with those at the first."""

    scale: str
    returns: tuple[float, ...]
    """Mean return of the final evaluation, by seed."""
    mean: float
    """Interquartile mean over the seeds."""
    interval: tuple[float, float]
    """In which it lies with 95 %, by the bootstrap."""
    difference: float | None = None
    """Of the means over all seeds, from the first scale; None: this is the first."""
    p: float | None = None
    """Chance of a difference as large between runs that differ by chance only."""
    differs: bool = False
    """True if it does at a level of one in twenty, for all scales together (Holm)."""
    detectable: float | None = None
    """The least difference that these seeds would have shown, by the same test at its strictest."""


def min_seeds(num_scales: int) -> int:
    """The fewest seeds from which a difference, however large, can be told from chance.

    Of the divisions of 2 n returns into two halves, two are as extreme as complete separation; the
    first of the corrected tests asks for a chance of one in twenty over the number of tests.
    """
    seeds = 2
    while 2 / math.comb(2 * seeds, seeds) > _LEVEL / max(num_scales - 1, 1):
        seeds += 1
    return seeds


def check(num_scales: int, num_seeds: int) -> None:
    """Raises RequestError where so many cannot be compared."""
    if num_scales < 2:
        raise RequestError(f"{num_scales} scale is nothing to compare; name at least 2.")
    least = min_seeds(num_scales)
    if num_seeds < least:
        raise RequestError(
            f"{num_seeds} seeds at {num_scales} scales cannot tell any difference, however large, "
            f"from chance; take at least {least}."
        )


def compare(returns: Mapping[str, Sequence[float]], seed: int = 0) -> list[Row]:
    """Compares scales with the first one.

    The interquartile mean and its bootstrap are those of Agarwal et al. (2021,
    https://arxiv.org/abs/2108.13264); equality is tested by permutation, exactly where there are
    few seeds, and corrected for the number of scales after Holm (1979).

    Args:
      returns: by scale, one number a seed.
      seed: of the resampling.

    Raises:
      RequestError: if there is one scale only, or one has too few seeds.
    """
    check(len(returns), min(map(len, returns.values()), default=0))
    random = np.random.default_rng(seed)
    first = np.asarray(next(iter(returns.values())), float)
    rows: list[Row] = []
    for scale, values in returns.items():
        here = np.asarray(values, float)
        low, high = interval([here], pooled_mean, seed=seed)
        mean = float(interquartile_mean(here))
        row = Row(scale, tuple(here.tolist()), mean, (float(low), float(high)))
        if rows:
            difference = float(here.mean() - first.mean())
            p = permutation_test(first, here, random)
            seen = detectable(first, here, _LEVEL / (len(returns) - 1), random)
            row = dataclasses.replace(row, difference=difference, p=p, detectable=seen)
        rows.append(row)
    return _holm(rows)


def permutation_test(one: np.ndarray, other: np.ndarray, random: np.random.Generator) -> float:
    """The two-sided p-value of a difference of means, if all were drawn from one distribution."""
    both, n = np.concatenate([one, other]), len(one)
    total, observed = both.sum(), abs(one.mean() - other.mean())
    if math.comb(len(both), n) <= _PERMUTATIONS:
        chosen = np.array(list(itertools.combinations(range(len(both)), n)))
        extra = 0
    else:
        chosen = random.permuted(np.tile(np.arange(len(both)), (_PERMUTATIONS, 1)), axis=1)[:, :n]
        extra = 1  # What was observed is one of the permutations.
    sums = both[chosen].sum(1)
    differences = np.abs(sums / n - (total - sums) / (len(both) - n))
    as_large = differences >= observed - 1e-9 * max(1.0, np.abs(both).max())
    return float((as_large.sum() + extra) / (len(chosen) + extra))


def detectable(
    one: np.ndarray, other: np.ndarray, level: float, random: np.random.Generator
) -> float:
    """The least difference of means that the test would have told from chance at this level.

    Both samples are moved to one mean and then apart, until `permutation_test` sees it; to one part
    in a hundred, and for the direction that takes more. Infinite where no distance is enough.
    """
    one, other = one - one.mean(), other - other.mean()
    spread = float(max(np.ptp(one), np.ptp(other)))
    least = 0.0
    for sign in (1.0, -1.0):

        def is_seen(shift: float, sign: float = sign) -> bool:
            return permutation_test(one, other + sign * shift, random) <= level

        low, high = 0.0, 2 * spread or 1e-6  # Beyond the spread the samples are quite apart.
        if not is_seen(high):
            return math.inf
        while spread and high - low > 0.01 * spread:
            middle = (low + high) / 2
            low, high = (low, middle) if is_seen(middle) else (middle, high)
        least = max(least, high if spread else 0.0)
    return least


def _holm(rows: list[Row]) -> list[Row]:
    tested = sorted((row.p, i) for i, row in enumerate(rows) if row.p is not None)
    for done, (p, i) in enumerate(tested):
        if p > _LEVEL / (len(tested) - done):
            break
        rows[i] = dataclasses.replace(rows[i], differs=True)
    return rows


def table(rows: Sequence[Row]) -> str:
    """A comparison in words."""
    width = max(len(row.scale) for row in rows)
    lines = []
    for row in rows:
        low, high = row.interval
        line = f"{row.scale:<{width}}  {row.mean:9.1f} [{low:.1f}, {high:.1f}]"
        if row.difference is not None:
            verdict = "differs" if row.differs else "no difference seen"
            line += f"  difference {row.difference:+.1f}, p = {row.p:.3f}: {verdict}"
            if not row.differs:
                line += f" (of {row.detectable:.1f} and more it would have been)"
        lines.append(line)
    return "\n".join(lines)
