"""Scores that raise, hang or are no numbers; and that nothing is left behind of where they are."""

import logging
import os
import pathlib
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

from troupe import environments
from troupe.environments.text import verifiers
from troupe.environments.text.verifiers import MOST_FAILURES, SeparateVerifier, Verifier

MODULE = '''
import itertools, os
import numpy as np

class Task:
    """Does what an answer says."""

    alphabet = "abc"

    def prompts(self, seed, held_out):
        while True:
            yield "ab"

    def score(self, prompt, answer):
        if answer == "loop":
            while True:
                pass
        if answer == "hang":  # Within C, where Python cannot be interrupted.
            sum(itertools.repeat(0))
        if answer == "exit":
            os._exit(3)
        if answer == "quit":
            raise SystemExit(2)
        if answer == "pid":
            return os.getpid()
        if answer == "numpy":
            return np.float32(0.5)
        return float(answer)

def refused():
    raise RuntimeError("no data")
'''


@pytest.fixture
def module(tmp_path, monkeypatch):
    (tmp_path / "own_verified.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    import own_verified

    return own_verified


def is_alive(pid):
    """False for what has ended, and for what nobody has waited for since."""
    try:
        state = pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


def ticks(pid):
    """Of processor time that a process has taken, a hundred a second."""
    return int(pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11])


def until_busy(pid):
    """Waits until a process has computed for a while."""
    before, deadline = ticks(pid), time.monotonic() + 60
    while ticks(pid) < before + 10:
        assert time.monotonic() < deadline
        time.sleep(0.02)


def until_gone(pid):
    deadline = time.monotonic() + 60
    while is_alive(pid):
        if time.monotonic() > deadline:
            os.kill(pid, signal.SIGKILL)
            pytest.fail(f"process {pid} was left behind")
        time.sleep(0.02)


def test_scores_come_from_elsewhere_and_what_hangs_counts_as_nothing(module, caplog):
    verifier = SeparateVerifier(module.Task, "mine", 0.3)
    with caplog.at_level(logging.WARNING):
        first = verifier.score("ab", ["1", "pid", "numpy"])
        assert first[::2] == [1.0, 0.5]
        assert first[1] not in (0, os.getpid())
        assert is_alive(int(first[1]))
        assert not caplog.records
        # What is Python is interrupted, and its process goes on.
        second = verifier.score("ab", ["0.25", "loop", "pid"])
        assert second == [0.25, 0.0, first[1]]
        # What is not ends with its process; all other answers are scored.
        third = verifier.score("ab", ["0.75", "hang", "pid", "exit", "quit", "word", "2"])
        assert third[:2] + third[3:] == [0.75, 0.0, 0.0, 0.0, 0.0, 2.0]
        assert third[2] != first[1]
    assert not is_alive(int(first[1]))
    assert len(caplog.records) == 1  # Of six.
    assert caplog.records[0].getMessage() == (
        "mine: the score of the answer 'loop' to 'ab' took more than 0.3 s; it counts as 0, as "
        "others will that fail"
    )
    last = int(verifier.score("ab", ["pid"])[0])
    verifier.close()
    assert not is_alive(last)
    assert verifier.score("ab", ["1"]) == [1.0]  # It begins again.
    again = int(verifier.score("ab", ["pid"])[0])
    del verifier
    assert not is_alive(again)


def test_it_works_in_a_thread_and_is_shared_by_a_vector(module):
    found = []

    def run():
        with environments.make(
            "tokens:own_verified:Task", seed=0, num_envs=3, answer_length=2, time_limit=60
        ) as vector:
            vector.reset()
            found.append(vector.step(np.full((3, 8, 2), 2)).reward)
            found.append(len({id(one._verifier) for one in vector.environments}))
            found.append(vector.environments[0]._verifier.score("ab", ["pid"])[0])

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    np.testing.assert_array_equal(found[0], [0, 0, 0])  # "aa" is no number.
    assert found[1] == 1
    assert not is_alive(int(found[2]))


SCRIPT = """
import own_verified
from troupe.environments.text.verifiers import SeparateVerifier
verifier = SeparateVerifier(own_verified.Task, "mine", 1.0)
print(int(verifier.score("ab", ["pid"])[0]), flush=True)
verifier.score("ab", [{answer!r}]) if {answer!r} else input()
"""


@pytest.mark.parametrize("answer", ["", "hang"])
def test_nothing_is_left_of_a_process_that_was_killed(module, answer):
    path = os.pathsep.join(sys.path)
    process = subprocess.Popen(
        [sys.executable, "-c", SCRIPT.format(answer=answer)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": path},
    )
    scoring = int(process.stdout.readline())
    until_busy(scoring) if answer else None
    assert is_alive(scoring)
    process.send_signal(signal.SIGKILL)
    process.wait()
    until_gone(scoring)
    process.communicate()


@pytest.mark.parametrize("apart", [False, True])
def test_too_many_failures_end_the_run(module, apart):
    task = module.Task
    verifier = SeparateVerifier(task, "mine", 60.0) if apart else Verifier(task(), "mine")
    words = [f"word{i}" for i in range(MOST_FAILURES)]
    assert verifier.score("ab", words) == [0.0] * MOST_FAILURES
    # A hundred more scores forgive a failure.
    assert verifier.score("ab", ["1"] * 100) == [1.0] * 100
    assert verifier.score("ab", ["bad"]) == [0.0]
    message = (
        f"mine: {MOST_FAILURES + 2} scores of {MOST_FAILURES + 102} failed, the last as the score "
        "of the answer 'x' to 'ab' raised ValueError: .*; have score return 0 where it cannot judge"
    )
    with pytest.raises(environments.InvalidRewardError, match=message):
        verifier.score("ab", ["x"])
    verifier.close()


@pytest.mark.parametrize("answer", ["nan", "inf", "1e39"])
def test_scores_that_are_no_numbers_are_so_elsewhere_too(module, answer):
    verifier = SeparateVerifier(module.Task, "mine", 60.0)
    with pytest.raises(environments.InvalidRewardError, match="must be finite float32 numbers"):
        verifier.score("ab", [answer])
    verifier.close()


@pytest.mark.parametrize("limit", [0, -1, float("nan"), float("inf"), "long", True, 1e6])
def test_limits_that_cannot_be(limit):
    with pytest.raises(environments.InvalidOptionError, match="time_limit must be a number of sec"):
        environments.make("tokens:reverse", seed=0, time_limit=limit)


def test_tasks_that_cannot_be_sent(module):
    with pytest.raises(
        environments.InvalidOptionError, match=r"cannot be sent there .* time_limit"
    ):
        SeparateVerifier(lambda: module.Task(), "mine", 1.0)
    verifier = SeparateVerifier(module.refused, "mine", 1.0)
    message = "mine cannot compute scores: it raised RuntimeError: no data"
    with pytest.raises(environments.EnvironmentFault, match=message):
        verifier.score("ab", ["1"])


def test_only_tasks_of_others_are_scored_elsewhere(module, monkeypatch):
    made = []
    monkeypatch.setattr(verifiers.SeparateVerifier, "begin", lambda self: made.append(self._limit))
    options = {"seed": 0, "answer_length": 2}
    environments.make("tokens:reverse", seed=0).reset()
    environments.make("tokens:own_verified:Task", time_limit=None, **options).reset()
    assert made == []
    environments.make("tokens:reverse", seed=0, time_limit=3).reset()
    environments.make("tokens:own_verified:Task", **options).reset()
    assert made == [3.0, 10.0]
