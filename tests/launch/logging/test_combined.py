"""Words of several runs in one place."""

import pytest

from troupe.launch.logging.combined import CombinedReporter
from troupe.launch.logging.report import Evaluated

from ...reporters import Lines


@pytest.fixture
def lines():
    return Lines()


def evaluated(steps, mean):
    return Evaluated(steps, "actor steps", mean, 1.0, 10)


def test_lines_have_the_name_of_their_run(lines):
    CombinedReporter(lines, ["0", "1"]).of_run(1).line("warning: it is late")
    assert lines.lines == ["1: warning: it is late"]


def test_evaluations_of_seeds_are_one_line_for_each_setting(lines):
    names = ["rate=1/0", "rate=1/1", "rate=2/0", "rate=2/1"]
    combined = CombinedReporter(lines, names)
    runs = [combined.of_run(index) for index in range(4)]
    for index, (steps, mean) in enumerate([(1000, 1.0), (1002, 4.0), (1000, 7.0)]):
        runs[index].evaluated(evaluated(steps, mean))
    assert lines.lines == [
        "rate=1: evaluation at 1,000 to 1,002 actor steps: return 2.5 (1.0 to 4.0) over 2 runs"
    ]
    runs[3].evaluated(evaluated(1000, 9.0))
    assert lines.lines[1:] == [
        "rate=2: evaluation at 1,000 actor steps: return 8.0 (7.0 to 9.0) over 2 runs"
    ]


def test_nobody_waits_for_a_run_that_has_ended(lines):
    combined = CombinedReporter(lines, ["0", "1", "2"])
    first, second, third = (combined.of_run(index) for index in range(3))
    first.close()
    second.evaluated(evaluated(500, 3.0))
    second.close()  # What it came to is told with that of the third, which is still at it.
    assert not lines.lines
    third.evaluated(evaluated(500, 5.0))
    third.evaluated(evaluated(900, 6.0))
    assert lines.lines == [
        "evaluation at 500 actor steps: return 4.0 (3.0 to 5.0) over 2 runs",
        "2: evaluation at 900 actor steps: return 6.0 +- 1.0 over 10 episodes",
    ]
