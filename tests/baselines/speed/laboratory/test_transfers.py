"""Transfers between two hosts of network namespaces, predicted and measured."""

import statistics

import pytest

from troupe.baselines.speed.laboratory import network, transfers
from troupe.partitioning.simulator.topology import Level, Topology


@pytest.mark.long
def test_transfers_between_hosts_take_what_is_predicted():
    if reason := network.why_not():
        pytest.skip(f"no network namespaces here: {reason}")
    found = network.measured_by(transfers.__name__, (100,), (1 << 20, 1 << 22))
    rows = [transfers.CrossedTransfer(**row) for row in found]
    print(transfers.table(rows))
    assert len(rows) == 2 * len(transfers.CASES)
    assert sum(r.predicted for r in rows) == pytest.approx(sum(r.measured for r in rows), rel=0.25)
    assert statistics.median(abs(r.error) for r in rows) < 0.15


@pytest.mark.parametrize("case", transfers.CASES)
def test_an_array_crosses_the_cable_once(case):
    topology = Topology((Level("host", 4, 1e9, 0.0, 4), Level("cable", 2, 1e6, 0.0, 4)))
    found = transfers.planned(case, 1 << 20, topology)
    assert found.bytes_by_level["cable"] == 1 << 20
    assert found.seconds >= (1 << 20) / 1e6


def test_it_says_why_no_namespaces_can_be_made(monkeypatch, capsys):
    monkeypatch.setattr(network, "why_not", lambda: "unshare failed")
    assert transfers.main([]) == 2
    assert capsys.readouterr().err == "transfers: no namespaces can be made here: unshare failed\n"


def test_the_table_names_the_worst():
    rows = [
        transfers.CrossedTransfer(100, "rows to rows", 4096, 4096, 1.0, 1.0),
        transfers.CrossedTransfer(400, "rows to one", 2048, 2048, 0.6, 1.0),
    ]
    text = transfers.table(rows)
    assert "worst -40% (rows to one, 2 KiB at 400 Mbit/s)" in text
    assert "| 100 | rows to rows | 4 | 4 | 1000.00 | 1000.00 | +0% |" in text
