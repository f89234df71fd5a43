"""Whether returns depend on the scale, from those of several seeds at each."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Mapping, Sequence

import numpy as np

from ..launch.errors import RequestError

MIN_SEEDS = 4
"""With fewer, no difference however large could be told from chance at one in twenty."""
_LEVEL = 0.05
_BOOTSTRAP, _PERMUTATIONS = 10_000, 20_000


@dataclasses.dataclass(frozen=True)
class Row:
    """What the runs at one scale came to."""

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
    """Whether it does at a level of one in twenty, for all scales together (Holm)."""


def check(num_scales: int, num_seeds: int) -> None:
    """Raises RequestError where so many cannot be compared."""
    if num_scales < 2:
        raise RequestError(f"{num_scales} scale is nothing to compare; name at least 2.")
    if num_seeds < MIN_SEEDS:
        raise RequestError(
            f"{num_seeds} seeds cannot tell a difference from chance; take at least {MIN_SEEDS}."
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
        resampled = random.choice(here, (_BOOTSTRAP, len(here)))
        low, high = np.quantile(interquartile_mean(resampled), [0.025, 0.975])
        mean = float(interquartile_mean(here))
        row = Row(scale, tuple(here.tolist()), mean, (float(low), float(high)))
        if rows:
            difference = float(here.mean() - first.mean())
            p = permutation_test(first, here, random)
            row = dataclasses.replace(row, difference=difference, p=p)
        rows.append(row)
    return _holm(rows)


def interquartile_mean(values: np.ndarray) -> np.ndarray:
    """Means of the middle half of the last dimension [..., n]; parts of values count as parts."""
    n = values.shape[-1]
    cut = n / 4
    rank = np.arange(n)
    # How much of each value lies between the quartiles.
    weight = np.clip(np.minimum(rank + 1 - cut, n - cut - rank), 0.0, 1.0)
    return np.sort(values, -1) @ weight / weight.sum()


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
            verdict = "differs" if row.differs else "equal as far as chance tells"
            line += f"  difference {row.difference:+.1f}, p = {row.p:.3f}: {verdict}"
        lines.append(line)
    return "\n".join(lines)
