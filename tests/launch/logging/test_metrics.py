"""Rows of metrics: written once, read in order, safe against what is no number."""

import json

import pytest

from troupe.launch.errors import RequestError
from troupe.launch.logging import metrics


def row(steps, kind="train", **values):
    return {"kind": kind, "actor_steps": steps, **values}


def test_rows_are_read_as_they_were_written(tmp_path):
    path = tmp_path / "metrics.jsonl"
    with metrics.MetricsWriter(path) as writer:
        writer.write(row(1, loss=0.5))
        writer.write(row(2, "evaluation", mean=1))
    assert list(metrics.read(path)) == [row(1, loss=0.5), row(2, "evaluation", mean=1)]
    assert list(metrics.read(path, "evaluation")) == [row(2, "evaluation", mean=1)]


def test_what_is_not_finite_is_null(tmp_path):
    path = tmp_path / "metrics.jsonl"
    with metrics.MetricsWriter(path) as writer:
        writer.write(row(1, a=float("nan"), b=float("inf"), c=1.0, d=None))
    assert json.loads(path.read_text(), parse_constant=lambda text: 1 / 0) == row(
        1, a=None, b=None, c=1.0, d=None
    )


def test_a_line_that_was_cut_short_is_left_out(tmp_path):
    path = tmp_path / "metrics.jsonl"
    with metrics.MetricsWriter(path) as writer:
        writer.write(row(1))
    with open(path, "a") as file:
        file.write('{"kind": "tr')
    assert list(metrics.read(path)) == [row(1)]


@pytest.mark.parametrize("line", ["", "{", "12", '{"kind": "train"}', "[]", "\x00\x01"])
def test_a_damaged_line_is_named(tmp_path, line):
    path = tmp_path / "metrics.jsonl"
    path.write_text(f"{json.dumps(row(1))}\n{line}\n{json.dumps(row(2))}\n")
    with pytest.raises(RequestError, match=r"metrics.jsonl is damaged: line 2 is no row"):
        list(metrics.read(path))


def test_rows_of_what_is_done_again_are_dropped(tmp_path):
    path = tmp_path / "metrics.jsonl"
    with metrics.MetricsWriter(path) as writer:
        for one in (row(1), row(3), row(2, "evaluation", mean=1), row(3, "evaluation"), row(4)):
            writer.write(one)
    with metrics.MetricsWriter(path, steps=3, evaluations=1) as writer:
        writer.sync()
        writer.write(row(5))
    assert list(metrics.read(path)) == [row(1), row(3), row(2, "evaluation", mean=1), row(5)]
    with metrics.MetricsWriter(path) as writer:
        writer.write(row(1))
    assert list(metrics.read(path)) == [row(1)]


def test_tensorboard_files_hold_the_same(tmp_path):
    with metrics.MetricsWriter(tmp_path / "metrics.jsonl") as writer:
        writer.write(row(5, loss=0.25, bad=float("nan")))
    (events,) = tmp_path.glob("events.out.tfevents.*")
    content = events.read_bytes()
    assert b"train/loss" in content
    assert b"train/bad" not in content


def test_texts_of_episodes_are_in_a_log_and_in_tensorboard(tmp_path):
    with metrics.MetricsWriter(tmp_path / "metrics.jsonl") as writer:
        writer.write_texts(["'ab=' 'ba' 1", "'cd=' 'cc' 0.5"], 1_200)
    log = (tmp_path / "logs" / "episodes.log").read_text()
    assert log == "1,200 'ab=' 'ba' 1\n1,200 'cd=' 'cc' 0.5\n"
    (events,) = tmp_path.glob("events.out.tfevents.*")
    assert b"    'ab=' 'ba' 1\n    'cd=' 'cc' 0.5" in events.read_bytes()
