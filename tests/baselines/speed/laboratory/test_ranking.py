"""Predicted and measured orders of schedules, and their correlation."""

import pytest

from troupe.baselines.speed.laboratory import ranking
from troupe.partitioning import models


def test_models_and_schedules_exist():
    assert set(ranking.MODELS) <= set(models.CATALOGUE)
    assert len(ranking.SCHEDULES) >= 12


def test_rank_correlation():
    assert list(ranking.rank([3.0, 1.0, 1.0])) == [2, 0.5, 0.5]
    assert ranking.spearman([1, 2, 3], [10, 20, 30]) == pytest.approx(1)
    assert ranking.spearman([1, 2, 3], [3, 2, 1]) == pytest.approx(-1)


def test_a_ranking_is_summed_up():
    rows = [
        ranking.ScheduleTimes("m", "", "", p, t) for p, t in ((1.0, 2.0), (2.0, 3.0), (3.0, 6.0))
    ]
    found = ranking.summary(rows)
    assert found["spearman"] == pytest.approx(1)
    assert found["place_of_predicted_best"] == 1
    assert found["median_error"] == pytest.approx(0.5)
