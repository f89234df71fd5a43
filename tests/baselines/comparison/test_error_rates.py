"""Rates of error, by simulation: of every shape of returns, at one look and of whole sequences.

A comparison is wrong where it calls equivalent what differs by the margin, or different what is
equal. The final return differs, the area does not: what is claimed of both is hardest then.
"""

import collections
import os
import warnings

import numpy as np
import pytest
from scipy import stats

from troupe.baselines.comparison.verdicts import (
    DIFFERENT,
    EQUIVALENT,
    METRICS,
    POWER,
    UNDECIDED,
    ComparisonRule,
    judge,
)

from .returns import MARGIN, SHAPES

FULL = bool(os.environ.get("TROUPE_FULL"))
NARROW, MIDDLE, WIDE = SPREADS = 0.3, 1.0, 2.0
SEQUENCES = [
    *(("normal", spread) for spread in SPREADS),
    ("heavy tails", WIDE), ("skewed", MIDDLE), ("bimodal", MIDDLE), ("constant", MIDDLE),
    # What fails is the same whatever the spread.
    ("one in ten fails", MIDDLE), ("one in five fails by half", MIDDLE),
    ("three in ten fail instead of one", MIDDLE),
]  # fmt: skip
if FULL:
    noisy = "heavy tails", "skewed", "bimodal"
    SEQUENCES += [(s, x) for s in noisy for x in SPREADS if (s, x) not in SEQUENCES]
assert {shape for shape, _ in SEQUENCES} == {*SHAPES}
SEVERAL = [*SHAPES] if FULL else ["normal", "skewed", "three in ten fail instead of one"]
"""Shapes of which whole sequences of several scales are drawn; of one scale all are."""
WRONG = 0.06  # Where 5 % are allowed.
MANY, SOME = (2_000, 1_000) if FULL else (800, 400)
"""Comparisons of scales that differ, and of equal ones: the rates of 800 spread by 0.8 %."""
PILOT = 10


def answers(shape, gap, spread, rule, seeds, number, num_others=1):
    """The answers on made-up scales, and the seeds that they took."""
    drawn = SHAPES[shape](np.random.default_rng(0), (num_others, number, seeds), gap, spread)
    area = np.ones(seeds)
    found, taken = collections.Counter(), []
    for k in range(number):
        returns = {"first": np.stack([drawn[0, 0, k], area])}
        for i in range(num_others):
            returns[f"other {i}"] = np.stack([drawn[1, i, k], area])
        for verdict in judge(returns, rule).values():
            found[verdict.answer] += 1 / number
            taken.append(verdict.seeds)
    return found, np.mean(taken)


@pytest.mark.parametrize("shape", SHAPES)
def test_a_difference_of_the_margin_is_seldom_called_equivalent(shape):
    found, _ = answers(shape, MARGIN, 1.0, ComparisonRule(MARGIN, 1.0, batch=35), 35, MANY)
    assert found[EQUIVALENT] <= WRONG


@pytest.mark.parametrize("shape", SHAPES)
def test_equal_returns_are_seldom_called_different(shape):
    found, _ = answers(shape, 0.0, 2.0, ComparisonRule(MARGIN, 1.0, batch=10), 10, SOME)
    assert found[DIFFERENT] <= WRONG


def test_a_rate_that_is_too_high_is_seen():
    """Without failed runs the same comparisons are wrong much too often, and trimmed ones more."""
    reference, other = SHAPES["one in ten fails"](np.random.default_rng(0), (2000, 30), MARGIN, 1.0)
    for trim, least in ((0.0, 0.15), (0.25, 0.9)):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Of samples without spread.
            chances = [
                stats.ttest_ind(
                    other + shift,
                    reference,
                    axis=-1,
                    equal_var=False,
                    trim=trim,
                    alternative=side,
                ).pvalue
                for shift, side in ((MARGIN, "greater"), (-MARGIN, "less"))
            ]
        wrong = np.max(chances, axis=0) <= 0.05
        assert wrong.mean() > least


@pytest.mark.parametrize("spread", [0.3, 1.0])
def test_equal_returns_are_shown_at_the_seeds_that_a_pilot_asks_for(spread):
    rule, random, shown = ComparisonRule(MARGIN, 1.0), np.random.default_rng(0), 0
    for _ in range(150):
        samples = 1.0 + spread * MARGIN * random.normal(size=(2, len(METRICS), 600))
        returns = dict(zip(("first", "other"), samples, strict=True))
        pilot = {name: one[:, :PILOT] for name, one in returns.items()}
        verdict = judge(pilot, rule)["other"]
        assert verdict.answer == UNDECIDED
        asked = {name: one[:, : verdict.needed] for name, one in returns.items()}
        shown += judge(asked, rule)["other"].answer == EQUIVALENT
    assert shown / 150 >= POWER


@pytest.mark.long
@pytest.mark.parametrize(("shape", "spread"), SEQUENCES)
def test_whole_sequences_keep_the_rates(shape, spread):
    """Looked at after every ten seeds up to a hundred."""
    wrong, _ = answers(shape, MARGIN, spread, ComparisonRule(MARGIN, 1.0), 100, MANY)
    assert wrong[EQUIVALENT] <= WRONG
    wrong, _ = answers(shape, 0.0, spread, ComparisonRule(MARGIN, 1.0), 100, SOME)
    assert wrong[DIFFERENT] <= WRONG


@pytest.mark.long
@pytest.mark.parametrize("shape", SEVERAL)
def test_of_several_scales_seldom_any_is_wrong(shape):
    """Four differ by the margin: that one is called equivalent is as rare as of one alone."""
    random, wrong = np.random.default_rng(0), 0
    for _ in range(SOME):
        reference, others = SHAPES[shape](random, (4, 60), MARGIN, 1.0)
        returns = {"first": np.stack([reference[0], np.ones(60)])}
        returns |= {str(i): np.stack([other, np.ones(60)]) for i, other in enumerate(others)}
        found = judge(returns, ComparisonRule(MARGIN, 1.0))
        wrong += any(verdict.answer == EQUIVALENT for verdict in found.values())
    assert wrong / SOME <= WRONG


@pytest.mark.long
@pytest.mark.parametrize("spread", [0.3, 1.0, 2.0])
def test_a_fault_of_two_margins_is_found_before_the_seeds_of_equivalence(spread):
    found, seeds = answers("normal", 2 * MARGIN, spread, ComparisonRule(MARGIN, 1.0), 100, 500)
    assert found[DIFFERENT] > 0.95
    assert seeds < 30
