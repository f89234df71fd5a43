"""What a run says while it goes on."""

import dataclasses
import io
import re

import pytest

from troupe.launch.logging import report

STATUS = report.Status(
    actor_steps=12_500,
    budget=50_000,
    learner_steps=6_000,
    episode_return=123.45,
    actor_rate=2500.4,
    learner_rate=1200.6,
    replay_fill=0.125,
    seconds_left=3725.0,
)
TEXT = (
    " 25%  return 123.5  12,500 steps at 2,500/s  6,000 gradient steps at 1,201/s  replay 12%  "
    "1:02:05 left"
)


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_a_status_in_words():
    assert STATUS.text() == TEXT


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.4, "0:00"), (75, "1:15"), (3599.6, "1:00:00"), (9e4, "1 day, 1:00:00")],
)
def test_durations(seconds, text):
    assert report.duration(seconds) == text


def test_elsewhere_than_on_a_terminal_there_are_plain_lines_now_and_then():
    stream = io.StringIO()
    reporter = report.for_stream(stream)
    reporter.status(STATUS)
    reporter.line("something happened")
    assert stream.getvalue() == "something happened\n"
    eager = report.Plain(stream, seconds=0)
    eager.status(STATUS)
    assert stream.getvalue().splitlines()[1] == TEXT


def test_a_terminal_has_one_live_line_below_what_happened(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "200")
    stream = Terminal()
    reporter = report.for_stream(stream)
    reporter.status(STATUS)
    assert "12,500 steps at 2,500/s" in stream.getvalue()
    reporter.line("evaluation [at] 5")
    assert "evaluation [at] 5" in stream.getvalue()
    reporter.close()


LONGEST = dataclasses.replace(
    STATUS,
    actor_steps=123_456_789,
    budget=1_000_000_000,
    learner_steps=99_999_999,
    episode_return=-12345.67,
    actor_rate=123456.7,
    learner_rate=98765.4,
    seconds_left=1e6,
)
STARTING = report.Starting(["learner/0", "actor/0", "actor/1", "evaluator", "inference"] * 3, 12.3)


@pytest.mark.parametrize("columns", [24, 40, 60, 80, 120, 200])
@pytest.mark.parametrize("status", [STATUS, LONGEST, STARTING])
def test_the_live_line_fits_the_terminal(monkeypatch, columns, status):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", str(columns))
    stream = Terminal()
    reporter = report.for_stream(stream)
    reporter.status(status)
    shown = re.sub(r"\x1b\[[^A-Za-z]*[A-Za-z]", "", stream.getvalue()).strip("\r\n")
    assert "\n" not in shown
    assert 0 < len(shown) < columns
    if columns == 80 and status is STATUS:
        for word in ("25%", "return 123.5", "12.5k steps", "1:02:05 left"):
            assert word in shown
    reporter.close()


@pytest.mark.parametrize(
    ("number", "text"),
    [(0.4, "0"), (9999, "9999"), (12_500, "12.5k"), (999_999, "1000k"), (1.234e6, "1.2M")],
)
def test_short_numbers(number, text):
    assert report.short(number) == text


def test_what_starts_is_named_and_then_what_is_waited_for():
    assert report.Starting(["learner", "actor/0"], 3).text() == "starting learner, actor/0 (0:03)"
    assert "waiting for the first steps" in report.Starting([], 3).text()


def test_lines_also_go_to_the_log(tmp_path):
    stream = io.StringIO()
    with report.Logged(report.Plain(stream), tmp_path / "main.log") as reporter:
        reporter.status(STATUS)
        reporter.line("something happened")
    assert stream.getvalue() == "something happened\n"
    (line,) = (tmp_path / "main.log").read_text().splitlines()
    assert line.endswith(" something happened")
