"""Two launches beside each other: what is asked, and what is told of the answers."""

import json
import sys

import pytest

from troupe.baselines.speed import __main__ as command
from troupe.baselines.speed import distributed


@pytest.fixture
def python(tmp_path):
    """One that answers by the launch: the first of them is twice as fast."""
    path = tmp_path / "python"
    path.write_text(
        f"""#!{sys.executable}
import json, sys
what, kind, agent, settings = json.loads(sys.argv[3])
print("a word of a library")
rate = settings.get("actors", 1) * (200.0 if kind == "ray" else 100.0)
print(json.dumps({{"steps_per_second": rate, "seconds_to_all": 10.0 / rate}}))
"""
    )
    path.chmod(0o755)
    return str(path)


def test_ratios_are_of_the_launches(python, monkeypatch, capsys):
    monkeypatch.setattr(sys, "executable", python)
    words = "dqn --launch ray --only acting variables --actors 1 8 --step-ms 5 --rounds 2 --json"
    assert command.main([*words.split(), "--against", f"processes={python}"]) == 0
    told = capsys.readouterr()
    rows = json.loads(told.out)
    assert [row.get("actors") for row in rows] == [1, 8, None]
    assert rows[1]["medians"]["processes"]["steps_per_second"] == 800.0
    assert [row["ratio"] for row in rows] == [2.0, 2.0, 0.5]
    assert "steps per second 2.00, of rounds 2.00, 2.00" in told.err


@pytest.mark.parametrize(
    ("against", "word"),
    [
        ("ray=python", "is the launch itself"),
        ("threads=python", "--against takes"),
        ("processes=/nowhere/python", "batches of ray"),
    ],
)
def test_what_cannot_be_measured_is_one_line(against, word, monkeypatch, capsys):
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    assert (
        distributed.main(["dqn", "--launch", "ray", "--only", "batches", "--against", against]) == 2
    )
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("troupe: ")
    assert word in line
