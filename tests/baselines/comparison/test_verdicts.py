"""Answers on scales, from cases written out."""

import dataclasses

import numpy as np
import pytest

from troupe.baselines.comparison import bounds
from troupe.baselines.comparison.equivalence import difference
from troupe.baselines.comparison.verdicts import (
    DIFFERENT,
    EQUIVALENT,
    LEVEL,
    METRICS,
    UNDECIDED,
    ComparisonRule,
    judge,
    needed,
)

RULE = ComparisonRule(margin=50.0, span=500.0)


def full(seeds, final=500.0, area=300.0):
    """Runs without spread."""
    return np.stack([np.full(seeds, final), np.full(seeds, area)])


def spread(seeds, seed, width=40.0, final=450.0):
    return np.random.default_rng(seed).normal([[final], [300.0]], width, size=(2, seeds))


def test_equal_returns_are_equivalent_at_the_first_look_that_can_say_so():
    found = judge({"one": full(60), "other": full(60)}, RULE)["other"]
    assert (found.answer, found.seeds, found.needed) == (EQUIVALENT, 30, None)
    assert set(found.metrics) == {*METRICS}
    for one in found.metrics.values():
        assert -50 < one.low < one.difference == 0.0 < one.high < 50
        assert one.p_equivalent <= found.level
        assert one.p_different == 1.0


def test_few_seeds_are_never_called_equal():
    found = judge({"one": full(20), "other": full(20)}, RULE)["other"]
    assert (found.answer, found.seeds, found.needed) == (UNDECIDED, 20, 30)


@pytest.mark.parametrize("metric", METRICS)
def test_one_metric_is_enough_to_differ_and_both_are_needed_to_be_equivalent(metric):
    worse = {"final": 500.0, "area": 300.0}
    worse[metric] -= 80.0
    found = judge({"one": full(60), "other": full(60, **worse)}, RULE)["other"]
    assert (found.answer, found.seeds) == (DIFFERENT, 10)
    assert found.metrics[metric].difference == -80.0
    # Less than the margin apart, for certain, but not shown to be so.
    worse[metric] += 35.0
    found = judge({"one": full(60), "other": full(60, **worse)}, RULE)["other"]
    assert (found.answer, found.seeds) == (UNDECIDED, 60)
    assert found.metrics[metric].p_different < 1e-9


def test_seeds_that_an_answer_did_not_take_change_nothing():
    random = np.random.default_rng(0)
    returns = {"one": spread(60, 0), "other": spread(60, 1), "worse": spread(60, 2, final=300.0)}
    found = judge(returns, RULE)
    assert found["worse"].answer == DIFFERENT
    more = {
        name: np.concatenate(
            [one[:, : found[name].seeds], random.normal(0, 900, size=(2, 30))], axis=1
        )
        for name, one in returns.items()
        if name in found
    }
    again = judge({"one": returns["one"], **more}, RULE)
    assert again["worse"] == found["worse"]
    short = {name: returns[name][:, : one.seeds] for name, one in found.items()}
    assert judge({"one": returns["one"], **short}, RULE)["worse"] == found["worse"]


def test_a_scale_that_is_shown_leaves_its_level_to_the_others():
    """Holm's correction, across looks."""
    alone = judge({"one": full(30), "other": full(30)}, RULE)["other"]
    assert alone.level == bounds.levels([30], LEVEL, 2)[-1]
    both = judge({"one": full(40), "a": full(40), "b": spread(40, 5, 900.0)}, RULE)
    assert both["a"].answer == EQUIVALENT
    assert both["b"].answer == UNDECIDED
    assert both["b"].level == bounds.levels([30, 40], LEVEL, 2)[-1]
    # Two that are as good must share it.
    shared = judge({"one": full(20), "a": full(20), "b": full(20)}, RULE)
    assert shared["a"].answer == shared["b"].answer == UNDECIDED
    assert RULE.equivalence_level([30], 2) < RULE.equivalence_level([30], 1)


def test_two_scales_must_be_clearer_than_one():
    """Unless one of them is so clear that it leaves the other the level for itself."""
    rule = ComparisonRule(margin=50.0, span=400.0, batch=30)
    half, whole = (rule.equivalence_level([30], share) for share in (2, 1))
    one, same, near = full(30), full(30), full(30, 490.0)
    chances = [judge({"one": one, "other": other}, rule)["other"] for other in (same, near)]
    clear, less = (verdict.metrics["final"].p_equivalent for verdict in chances)
    assert clear < half < less < whole

    def answers(*others):
        found = judge({"one": one, **dict(zip("ab", others, strict=False))}, rule)
        return [verdict.answer for verdict in found.values()]

    assert answers(near) == [EQUIVALENT]
    assert answers(near, near) == [UNDECIDED, UNDECIDED]
    assert answers(near, same) == [EQUIVALENT, EQUIVALENT]


def test_looks_that_can_show_nothing_spend_nothing():
    assert RULE.first == 27
    assert RULE.equivalence_level([10, 20], 1) == 0.0
    assert RULE.equivalence_level([10, 20, 30], 1) == RULE.equivalence_level([30], 1)
    one = np.zeros(26)
    assert difference(one, one, 50.0, 500.0).p_equivalent > LEVEL
    # The early ones are for faults.
    assert RULE.difference_level([10], 1) > 0.0


def test_pairs_are_of_equal_seeds():
    reference = spread(30, 3, width=200.0)
    near = reference + spread(30, 4, width=1.0, final=0.0) - [[0.0], [300.0]]
    returns = {"one": reference, "other": near}
    found = judge(returns, RULE, {"other"})["other"]
    assert (found.answer, found.paired) == (EQUIVALENT, True)
    assert judge(returns, RULE)["other"].answer == UNDECIDED


def test_wider_spreads_need_more_seeds():
    found = [needed(spread(10, 6, width), spread(10, 7, width), RULE) for width in (1, 50, 100)]
    assert found[0] == 30
    assert found == sorted(found)
    assert all(number % RULE.batch == 0 for number in found)
    assert needed(spread(10, 6, 5e4), spread(10, 7, 5e4), RULE) is None
    shared = needed(spread(10, 6, 50), spread(10, 7, 50), RULE, share=4)
    assert shared > found[1]
    small = dataclasses.replace(RULE, margin=0.001)
    assert needed(spread(10, 6, 50), spread(10, 7, 50), small) is None
