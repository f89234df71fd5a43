"""Schedules with and without stages over a slow link, predicted and measured."""

import os

import pytest

from troupe.baselines.speed.laboratory import links, network


@pytest.mark.long
@pytest.mark.skipif(not os.environ.get("TROUPE_FULL"), reason="two minutes; set TROUPE_FULL=1")
def test_a_pipeline_over_a_slow_link_is_as_quick_as_predicted():
    if reason := network.why_not():
        pytest.skip(f"no network namespaces here: {reason}")
    rows = links.measure()
    print(links.table(rows))
    predicted, measured = links.gains(rows)
    assert predicted > 1.5
    assert measured > 1.5


def row(mesh, schedule, predicted, measured):
    is_pipeline = "pipeline" in schedule
    return links.LinkTimes(100, 512, mesh, schedule, is_pipeline, predicted, measured)


ROWS = [
    row("data=2", "batch:data", 0.6, 0.8),
    row("model=2", "megatron:model", 0.5, 1.5),
    row("stage=2", "pipeline:stage", 0.2, 0.4),
    row("stage=2", "pipeline:stage+gpipe+4", 0.3, 0.2),
]


def test_each_is_best_by_what_is_compared():
    assert links.gains(ROWS) == pytest.approx((0.5 / 0.2, 0.8 / 0.2))


def test_the_table_names_the_worst():
    text = links.table(ROWS)
    assert "predicted to be 2.50 times as fast as the best schedule without, and is 4.00" in text
    assert "the worst prediction is -67% off (megatron:model)" in text
    assert "| 100 | 512 | data=2 | batch:data | 600 | 800 | -25% |" in text
