"""What a run tells before its first step."""

import time

from troupe.launch.logging import metrics, monitor, report


class Told(report.Reporter):
    def __init__(self):
        self.statuses = []

    def status(self, status):
        self.statuses.append(status)


def test_what_starts_is_told_when_it_is_due(tmp_path, monkeypatch):
    now = 100.0
    monkeypatch.setattr(time, "perf_counter", lambda: now)
    told = Told()
    with metrics.MetricsWriter(tmp_path / "metrics.jsonl") as rows:
        numbers = monitor.Numbers(0, 0.0, {})
        watching = monitor.Monitor(rows, told, 100, lambda: numbers, callbacks=None, before={})
        watching.starting(["learner"])
        assert told.statuses == []  # Not yet: most roles are back within this time.
        now += 1.0
        watching.starting(["learner"])
        watching.starting(["learner"])
        now += 1.0
        watching.starting([])
    assert told.statuses == [report.Starting(("learner",), 1.0), report.Starting((), 2.0)]
