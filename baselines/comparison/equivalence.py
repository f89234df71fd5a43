"""Differences between the mean returns of two samples of runs, against a margin.

The estimate is a difference of means, not of trimmed ones: a launch that loses one seed in ten has
the interquartile mean of one that loses none. Its standard error counts `FAILED` further runs on
each side, off by the whole range of returns, as Agresti and Coull (1998,
https://doi.org/10.1080/00031305.1998.10480550) do for proportions. Ten seeds that all reach 500
show no spread, yet one in ten may fail: such samples are equivalent from about thirty seeds on, not
from two. `tests/baselines/comparison/test_error_rates.py` has the rates of error, with those of
Welch's and Yuen's tests beside them.
"""

from __future__ import annotations

import bisect
from typing import NamedTuple

import numpy as np
from scipy import stats

FAILED = float(stats.norm.isf(0.05) ** 2 / 2)
"""Failed runs that are added to a sample: half of the squared normal quantile of the level."""
_CONFIDENCE = 0.5
"""Of the upper limit of the spread that a number of seeds is planned with: with the half, a plan is
too short as often as too long."""
_MOST = 10**12
"""More seeds than there are."""
_ROUNDING = 1e-9
"""Part of the range of returns that counts as nothing."""


class Difference(NamedTuple):
    """The difference of two means; arrays [...] where the samples were [..., n]."""

    estimate: np.ndarray
    """The mean of the other sample less that of the reference."""
    error: np.ndarray
    """Its standard error, with failed runs on each side."""
    freedom: np.ndarray
    """Degrees of freedom of `error`."""
    p_equivalent: np.ndarray
    """p-value of two one-sided tests (Schuirmann 1987) that it is as large as the margin."""
    p_different: np.ndarray
    """Two-sided p-value of Welch's test, or of the paired one, that it is zero."""

    def interval(self, level: float) -> tuple[np.ndarray, np.ndarray]:
        """Returns the ends of the interval within the margins just where p_equivalent <= level."""
        half = stats.t.isf(level, self.freedom) * self.error
        return self.estimate - half, self.estimate + half


def difference(
    reference: np.ndarray, other: np.ndarray, margin: float, span: float, *, paired: bool = False
) -> Difference:
    """Estimates the distance of a sample's mean from that of a reference.

    Args:
      reference: returns [..., n] of at least two runs.
      other: returns [..., m]; where paired, m = n and equal places are equal seeds.
      margin: the difference that counts, positive.
      span: the range of returns, by which a failed run is off.
      paired: True if runs of one seed share their draws.
    """
    if paired:
        between = other - reference
        failing = _squared_error(between, 2 * FAILED, 2 * FAILED * span**2)
        (error, freedom), plain = _welch(failing), _welch(_squared_error(between))
    else:
        error, freedom = _welch(_with_failed(reference, span), _with_failed(other, span))
        plain = _welch(_squared_error(reference), _squared_error(other))
    estimate = other.mean(-1) - reference.mean(-1)
    apart = np.abs(estimate)
    p_equivalent = stats.t.sf((margin - apart) / error, freedom)
    # Runs without any spread are the same or are not.
    nothing = _ROUNDING * span
    score = apart / np.maximum(plain[0], nothing)
    p_different = np.where(apart > nothing, 2 * stats.t.sf(score, plain[1]), 1.0)
    return Difference(estimate, error, freedom, p_equivalent, p_different)


def fewest(margin: float, span: float, level: float) -> int:
    """Returns the least number of seeds a side that shows runs without spread to be equivalent."""

    def is_shown(seeds: int) -> bool:
        count = seeds + FAILED
        error = span / count * np.sqrt(2 * FAILED * seeds / (count - 1))
        return bool(stats.t.sf(margin / error, 2 * (count - 1)) <= level)

    return bisect.bisect_left(range(_MOST), True, lo=2, key=is_shown)


def power(
    reference: np.ndarray,
    other: np.ndarray,
    margin: float,
    span: float,
    seeds: np.ndarray,
    levels: np.ndarray,
    *,
    paired: bool,
) -> np.ndarray:
    """Estimates the chances [k] that equal returns are shown to be equivalent.

    They are of an upper limit of the spread that the samples [n] show (Browne 1995,
    https://doi.org/10.1002/sim.4780141709): a plan for what they show is often too short.

    Args:
      seeds: a side, [k].
      levels: of either one-sided test, [k].
    """
    samples = [other - reference] if paired else [reference, other]
    parts = [(np.asarray(one.var(ddof=1)), len(one) - 1.0) for one in samples]
    shown, freedom = _welch(*parts)
    variance = shown**2 * freedom / stats.chi2.ppf(1 - _CONFIDENCE, freedom)
    count = seeds + 2 * FAILED / len(samples)
    failed = 2 * FAILED * span**2 * (1.0 if paired else seeds / count)
    error = np.sqrt((variance * (seeds - 1) + failed) / (count * (count - 1)))
    room = margin - stats.t.isf(levels, len(samples) * (count - 1)) * error
    noise = np.maximum(np.sqrt(variance / seeds), _ROUNDING * span)
    return np.maximum(1 - 2 * stats.norm.sf(room / noise), 0.0)


def _squares(values: np.ndarray) -> np.ndarray:
    return ((values - values.mean(-1, keepdims=True)) ** 2).sum(-1)


def _squared_error(
    values: np.ndarray, added: float = 0.0, squares: float = 0.0
) -> tuple[np.ndarray, float]:
    """The squared standard error of a mean, and its degrees of freedom.

    Args:
      values: [..., n].
      added: further values, on which the mean does not depend.
      squares: what they add to the sum of squared deviations.
    """
    count = values.shape[-1] + added
    return (_squares(values) + squares) / (count * (count - 1)), count - 1


def _with_failed(values: np.ndarray, span: float) -> tuple[np.ndarray, float]:
    """The same with failed runs, all on one side of the others."""
    n = values.shape[-1]
    return _squared_error(values, FAILED, span**2 * n * FAILED / (n + FAILED))


def _welch(*parts: tuple[np.ndarray, float]) -> tuple[np.ndarray, np.ndarray]:
    """The standard error of a sum, and its degrees of freedom after Welch and Satterthwaite."""
    total = np.asarray(sum(square for square, _ in parts))
    shares = np.asarray(sum(square**2 / freedom for square, freedom in parts))
    most = sum(freedom for _, freedom in parts)
    freedom = np.divide(total**2, shares, out=np.full_like(total, most), where=shares > 0)
    return np.sqrt(total), freedom
