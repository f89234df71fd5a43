"""What a run tells before its first step."""

import time

from troupe.launch.callbacks import Callbacks
from troupe.launch.episodes import EndedEpisode
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


def test_numbers_of_info_are_told_whatever_the_episodes_came_through(tmp_path):
    """Those of roles come as lists, those of an earlier version without such numbers."""
    path = tmp_path / "metrics.jsonl"
    with metrics.MetricsWriter(path) as rows:
        callbacks = Callbacks([], print, print)
        numbers = monitor.Numbers(0, 0.0, {})
        watching = monitor.Monitor(rows, Told(), None, lambda: numbers, callbacks, before={})
        counts = {**dict.fromkeys(metrics.COUNTS, 0), "train_seconds": 0.0}
        watching.write_row(counts, [[1.0, 2], [2.0, 3, {"success": 1.0}], EndedEpisode(3.0, 4)])
    (row,) = metrics.read(path)
    assert (row["return"], row["info/success"]) == (2.0, 1.0)
