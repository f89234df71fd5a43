"""Statistics of few runs, against cases written out."""

import itertools

import numpy as np
import pytest
from scipy import stats

from troupe.baselines import statistics


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([1, 2, 3, 4], 2.5),
        ([4, 100, 2, -100], 3.0),
        ([1, 2, 3, 4, 5, 6, 7, 8], 4.5),
        # A quarter of five values is one and a quarter: three quarters of the second count.
        ([0, 10, 20, 30, 1000], (0.75 * 10 + 20 + 0.75 * 30) / 2.5),
    ],
)
def test_the_interquartile_mean_is_that_of_the_middle_half(values, expected):
    values = np.asarray(values, float)
    assert statistics.interquartile_mean(values) == pytest.approx(expected)
    found = statistics.interquartile_mean(np.stack([values, values + 1]))
    np.testing.assert_allclose(found, [expected, expected + 1])


def test_the_interquartile_mean_is_that_of_rliable():
    """A quarter is trimmed off either end (its `aggregate_iqm`)."""
    values = np.random.default_rng(0).normal(size=(3, 20))
    expected = stats.trim_mean(values, 0.25, axis=-1)
    np.testing.assert_allclose(statistics.interquartile_mean(values), expected)


def test_the_interval_is_that_of_all_resamples():
    """Of three seeds there are 27 resamples, each as likely."""
    values = np.array([0.0, 4.0, 100.0])
    # The middle half of three: three quarters of the outer ones are cut, (a + 4 b + c) / 6.
    means = sorted(
        (a + 4 * b + c) / 6 for a, b, c in map(sorted, itertools.product(values, repeat=3))
    )
    cumulated = np.arange(1, 28) / 27
    low, high = (means[np.searchsorted(cumulated, share)] for share in (0.025, 0.975))
    found = statistics.interval([values], statistics.pooled_mean)
    np.testing.assert_allclose(found, [low, high])
    assert (low, high) == (0.0, 100.0)


def test_seeds_are_drawn_within_their_environment():
    """Two environments of one seed each have nothing to be drawn otherwise."""
    strata = [np.array([1.0]), np.array([5.0])]
    assert statistics.interval(strata, statistics.pooled_mean) == (3.0, 3.0)
    # Pooled, one draw in four would be 1 twice, and one 5 twice.
    assert statistics.interval([np.array([1.0, 5.0])], statistics.pooled_mean) == (1.0, 5.0)


def test_a_profile_is_the_share_of_runs_above():
    strata = [np.array([1.0, 2.0, 3.0, 4.0]), np.array([3.0, 3.0])]
    found = statistics.profile(strata, np.array([0.0, 2.0, 3.0, 4.0]))
    np.testing.assert_allclose(found, [1.0, (0.5 + 1.0) / 2, (0.25 + 0.0) / 2, 0.0])
    stacked = statistics.profile([x[None] for x in strata], np.array([2.0]))
    np.testing.assert_allclose(stacked, [[0.75]])


def test_an_interval_repeats():
    values = [np.random.default_rng(0).normal(size=10)]
    one, other = (statistics.interval(values, statistics.pooled_mean) for _ in range(2))
    assert one == other
    assert one[0] < statistics.pooled_mean(values) < one[1]
