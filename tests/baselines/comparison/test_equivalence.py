"""Differences of means, against scipy's tests and cases written out."""

import numpy as np
import pytest
from scipy import stats

from troupe.baselines.comparison import equivalence
from troupe.baselines.comparison.equivalence import FAILED, difference, fewest, power

MARGIN = 1.5
TINY = 1e-7  # A range of returns that is no range: failed runs are not off.


@pytest.fixture(params=[(9, 9), (9, 14), (2, 3)], ids=str)
def samples(request):
    n, m = request.param
    random = np.random.default_rng(n * m)
    return random.normal(size=n), random.normal(0.4, 3.0, size=m)


def test_without_failed_runs_it_is_welch_s_test(samples, monkeypatch):
    monkeypatch.setattr(equivalence, "FAILED", 0.0)
    reference, other = samples
    found = difference(reference, other, MARGIN, TINY)
    two_sided = stats.ttest_ind(other, reference, equal_var=False)
    assert found.p_different == pytest.approx(two_sided.pvalue)
    assert found.freedom == pytest.approx(two_sided.df)
    one_sided = [
        stats.ttest_ind(other, reference + shift, equal_var=False, alternative=side).pvalue
        for shift, side in ((-MARGIN, "greater"), (MARGIN, "less"))
    ]
    assert found.p_equivalent == pytest.approx(max(one_sided))


def test_in_pairs_it_is_the_paired_test(samples, monkeypatch):
    monkeypatch.setattr(equivalence, "FAILED", 0.0)
    reference, other = samples
    other = other[: len(reference)]
    found = difference(reference, other, MARGIN, TINY, paired=True)
    assert found.p_different == pytest.approx(stats.ttest_rel(other, reference).pvalue)
    one_sided = [
        stats.ttest_rel(other, reference + shift, alternative=side).pvalue
        for shift, side in ((-MARGIN, "greater"), (MARGIN, "less"))
    ]
    assert found.p_equivalent == pytest.approx(max(one_sided))


@pytest.mark.parametrize("paired", [False, True])
def test_the_error_counts_failed_runs(paired, monkeypatch):
    """As if they were among the runs, written out with one whole run of them."""
    monkeypatch.setattr(equivalence, "FAILED", 1.0)
    span = 50.0
    reference, other = np.random.default_rng(0).normal(100, 5, size=(2, 12))
    found = difference(reference, other, MARGIN, span, paired=paired)
    if paired:
        between = other - reference
        with_failed = [*between, between.mean() - span, between.mean() + span]
        assert found.error == pytest.approx(stats.sem(with_failed))
    else:
        with_failed = [[*one, one.mean() - span] for one in (reference, other)]
        assert found.error == pytest.approx(np.hypot(*map(stats.sem, with_failed)))
    assert found.estimate == pytest.approx(other.mean() - reference.mean())


@pytest.mark.parametrize("paired", [False, True])
def test_an_interval_is_within_the_margin_just_where_returns_are_equivalent(paired):
    random = np.random.default_rng(1)
    samples = random.normal(size=(2, 200, 40)) + random.normal(size=(200, 1)) * [[[0]], [[0.5]]]
    found = difference(*samples, 0.8, 3.0, paired=paired)
    for level in (0.05, 0.01):
        low, high = found.interval(level)
        within = (low > -0.8) & (high < 0.8)
        assert (within == (found.p_equivalent < level)).all()
        assert 0 < within.sum() < 200


def test_many_comparisons_are_those_of_each():
    samples = np.random.default_rng(2).normal(size=(2, 5, 8))
    for paired in (False, True):
        found = difference(*samples, 1.0, 2.0, paired=paired)
        for i in range(5):
            one = difference(*samples[:, i], 1.0, 2.0, paired=paired)
            np.testing.assert_allclose([field[i] for field in found], one)


@pytest.mark.parametrize("paired", [False, True])
def test_runs_without_spread_differ_or_do_not(paired):
    """Of seeds that all came to 500: no division by zero, and no answer from a few of them."""
    full = np.full(10, 500.0)
    same = difference(full, full, 50.0, 500.0, paired=paired)
    assert same.p_different == 1.0
    assert same.p_equivalent > 0.05
    many = np.full(40, 500.0)
    assert difference(many, many, 50.0, 500.0, paired=paired).p_equivalent < 0.05
    apart = difference(full, full - 20.0, 50.0, 500.0, paired=paired)
    assert apart.p_different < 1e-12
    beyond = difference(many, many - 50.0, 50.0, 500.0, paired=paired)
    assert beyond.p_equivalent == pytest.approx(0.5)


@pytest.mark.parametrize(("margin", "span"), [(50.0, 500.0), (1.0, 4.0), (0.3, 9.0)])
def test_the_fewest_seeds_are_those_of_runs_without_spread(margin, span):
    seeds = fewest(margin, span, 0.05)
    for number, shown in ((seeds, True), (seeds - 1, False)):
        one = np.zeros(number)
        assert (difference(one, one, margin, span).p_equivalent <= 0.05) == shown


def test_failed_runs_are_those_of_agresti_and_coull():
    assert pytest.approx(1.6449**2 / 2, rel=1e-4) == FAILED


@pytest.mark.parametrize("paired", [False, True])
def test_power_is_the_share_that_is_shown(paired):
    """Of equal returns, with the spread that is planned with."""
    random = np.random.default_rng(3)
    seeds, level, margin, span = 40, 0.03, 0.1, 0.6
    pilots = random.normal(0, 0.1, size=(2000, 2, 12))
    planned = np.mean(
        [
            power(*pilot, margin, span, np.array([seeds]), np.array([level]), paired=paired)
            for pilot in pilots
        ]
    )
    drawn = random.normal(0, 0.1, size=(2, 4000, seeds))
    shown = (difference(*drawn, margin, span, paired=paired).p_equivalent <= level).mean()
    assert 0.6 < shown < 0.95
    assert planned == pytest.approx(shown, abs=0.05)
