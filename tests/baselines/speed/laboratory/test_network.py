"""Collectives between two hosts of network namespaces, predicted and measured."""

import dataclasses
import os
import statistics

import pytest

from troupe.baselines.speed.laboratory import network, reductions


@pytest.mark.long
@pytest.mark.skipif(not os.environ.get("TROUPE_FULL"), reason="two minutes; set TROUPE_FULL=1")
def test_transfers_between_hosts_take_what_is_predicted():
    if reason := network.why_not():
        pytest.skip(f"no network namespaces here: {reason}")
    found = network.measure(network.RATES, network.SIZES)
    print(network.table(found))
    assert len(found) == len(network.RATES) * len(network.SIZES) * 8
    for rate in network.RATES:
        for size in network.SIZES:
            alike = [t for t in found if (t.rate, round(t.nbytes / size, 2)) == (rate, 1)]
            measured = sum(t.measured for t in alike)
            assert len(alike) == 8
            assert sum(t.predicted for t in alike) == pytest.approx(measured, rel=0.25), (
                rate,
                size,
            )
    # One by one, what else the machine does shows.
    assert statistics.median(abs(t.error) for t in found) < 0.15


def test_it_says_why_no_namespaces_can_be_made(monkeypatch, capsys):
    monkeypatch.setattr(network, "why_not", lambda: "unshare failed")
    assert network.main([]) == 2
    assert capsys.readouterr().err == ("network: no namespaces can be made here: unshare failed\n")


def test_the_table_names_the_worst():
    rows = [
        network.Crossing(100, "all_reduce", 8, 4096.0, 1.0, 1.0),
        network.Crossing(400, "all_gather", 2, 2048.0, 0.6, 1.0),
    ]
    text = network.table(rows)
    assert "worst -40% (all_gather of 2 KiB among 2 at 400 Mbit/s)" in text
    assert "| 100 | all_reduce | 8 | 4 | 1000.00 | 1000.00 | +0% |" in text


@pytest.mark.long
@pytest.mark.skipif(not os.environ.get("TROUPE_FULL"), reason="two minutes; set TROUPE_FULL=1")
def test_sums_between_hosts_send_what_is_predicted_and_the_quickest_is_chosen():
    if reason := network.why_not():
        pytest.skip(f"no network namespaces here: {reason}")
    module = reductions.__name__
    found = [
        reductions.Reduction(**r) for r in network.measured_by(module, (100, 1000), (1 << 22,))
    ]
    print(reductions.table(found))
    for row in found:
        assert row.sent_bytes == pytest.approx(row.predicted_bytes, rel=0.03)
    chosen = {row.rate: row.program for row in found if row.chosen}
    assert chosen == {100: reductions.BY_LEVEL, 1000: reductions.FLAT}
    seconds = {(row.rate, row.program): row.measured for row in found}
    assert 1.6 * seconds[100, reductions.BY_LEVEL] < seconds[100, reductions.FLAT]


def test_the_table_of_sums_says_how_often_the_quickest_was_chosen():
    rows = [
        reductions.Reduction(100, 2.0**22, reductions.FLAT, False, 0.6, 0.7, 7e6, 7.07e6),
        reductions.Reduction(100, 2.0**22, reductions.BY_LEVEL, True, 0.4, 0.35, 4e6, 4.02e6),
    ]
    text = reductions.table(rows)
    assert "100 Mbit/s, 4 MiB: 2.00 times as fast as at once." in text
    assert "chosen in 1 of 1 cases, 1 of 1 pairs are in the order that was predicted;" in text
    assert "bytes are within 1.0%" in text
    assert reductions.in_order([*rows, dataclasses.replace(rows[0], rate=400)]) == (1, 1)
