"""Levels of repeated tests, against published tables and simulation."""

import numpy as np
import pytest
from scipy import stats

from troupe.baselines.comparison import bounds

FIFTHS = tuple(np.arange(1, 6) / 5)


@pytest.mark.parametrize(
    ("spending", "expected"),
    [
        # Bounds of five looks at a two-sided level of 5 %, as Lan and DeMets' program prints them.
        (
            lambda t: 2 * stats.norm.sf(stats.norm.isf(0.0125) / np.sqrt(t)),
            [4.8769, 3.3569, 2.6803, 2.2898, 2.0310],
        ),
        (
            lambda t: 0.025 * np.log(1 + (np.e - 1) * t),
            [2.4380, 2.4268, 2.4101, 2.3966, 2.3859],
        ),
    ],
    ids=["O'Brien and Fleming", "Pocock"],
)
def test_bounds_are_the_published_ones(spending, expected):
    found = bounds.nominal(FIFTHS, tuple(spending(np.array(FIFTHS))))
    # Tables are of two-sided bounds, which the other side changes in the fourth place.
    np.testing.assert_allclose(stats.norm.isf(found), expected, atol=2e-4)


def test_one_look_has_what_is_spent():
    assert bounds.nominal((7,), (0.03,)) == pytest.approx((0.03,))
    assert bounds.levels([20], 0.05, 1) == pytest.approx((0.025,))


@pytest.mark.parametrize("power", [1, 2])
def test_looks_to_come_change_nothing(power):
    looks = [10, 15, 40, 41, 100]
    found = bounds.levels(looks, 0.05, power)
    for number in range(1, len(looks)):
        assert bounds.levels(looks[:number], 0.05, power) == found[:number]


@pytest.mark.parametrize("power", [1, 2])
def test_errors_up_to_each_look_are_those_spent(power):
    """Of a hundred looks, however many are taken."""
    looks = np.arange(10, 1001, 10)
    sums = np.random.default_rng(0).normal(size=(20_000, 100)).cumsum(1)
    scores = sums / np.sqrt(np.arange(1, 101))
    beyond = scores > stats.norm.isf(bounds.levels(looks, 0.05, power))
    for number in (1, 3, 10, 100):
        spent = 0.05 * looks[number - 1] ** power / (looks[number - 1] ** power + 20**power)
        assert beyond[:, :number].any(1).mean() == pytest.approx(spent, abs=0.005)


def test_a_smaller_rate_has_smaller_levels():
    """So that a claim of Holm's keeps what it had when it is given more."""
    looks = range(10, 101, 10)
    whole, half = (np.array(bounds.levels(looks, level, 2)) for level in (0.05, 0.025))
    assert (half < whole).all()
