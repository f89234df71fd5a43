"""Statistics of few runs: Agarwal et al. (2021), https://arxiv.org/abs/2108.13264.

Returns come in strata, one array [number of seeds] for each environment. A statistic of them takes
resampled strata too, as arrays [..., number of seeds].
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

RESAMPLES = 10_000
_TAIL = 0.025
"""Of a 95 % interval, at each side."""

Strata = Sequence[np.ndarray]
Statistic = Callable[[Strata], np.ndarray]
"""From strata [..., n_i] to numbers [..., ...]."""


def interquartile_mean(values: np.ndarray) -> np.ndarray:
    """Means of the middle half of the last dimension [..., n]; parts of values count as parts."""
    n = values.shape[-1]
    cut = n / 4
    rank = np.arange(n)
    # How much of each value lies between the quartiles.
    weight = np.clip(np.minimum(rank + 1 - cut, n - cut - rank), 0.0, 1.0)
    return np.sort(values, -1) @ weight / weight.sum()


def pooled_mean(strata: Strata) -> np.ndarray:
    """The interquartile mean [...] of all runs, whatever their environment."""
    return interquartile_mean(np.concatenate(strata, axis=-1))


def profile(strata: Strata, thresholds: np.ndarray) -> np.ndarray:
    """The share of runs [..., number of thresholds] above each threshold, the mean over strata."""
    above = [np.mean(x[..., None] > thresholds, axis=-2) for x in strata]
    return np.mean(above, axis=0)


def interval(
    strata: Strata, statistic: Statistic, *, seed: int = 0, resamples: int = RESAMPLES
) -> tuple[np.ndarray, np.ndarray]:
    """The ends of a 95 % interval, by the stratified percentile bootstrap.

    Seeds are drawn with replacement within each environment, which keeps as many as it has.

    Args:
      strata: [n_i] each, of at least one seed.
      statistic: the function of the strata that the interval is for.
      seed: of the draws.
      resamples: how often they are drawn.

    Returns:
      The least and the greatest, of the statistic's shape.
    """
    random = np.random.default_rng(seed)
    drawn = [x[random.integers(len(x), size=(resamples, len(x)))] for x in map(np.asarray, strata)]
    low, high = np.quantile(statistic(drawn), [_TAIL, 1 - _TAIL], axis=0)
    return low, high
