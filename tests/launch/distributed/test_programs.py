"""Whole runs of a user's own agent: the same object in one process, threads and processes.

What must be still running has a budget that no machine spends, and goes on with a small one.
"""

import contextlib
import signal

import pytest

from ...processes import state_and_parent

pytest.importorskip("launchpad")
pytestmark = [pytest.mark.distributed, pytest.mark.long]

ENDLESS = 10**9
CHUNKS = "chunks.tfrecord"


@pytest.mark.parametrize(
    ("kind", "settings"),
    [
        ("one-process", {}),
        ("threads", {"actors": 2}),
        ("processes", {"actors": 2, "inference_servers": 1, "evaluators": 2}),
        ("processes", {"actors": 3, "actors_per_process": 2}),
    ],
)
def test_a_users_agent_runs_everywhere(start, kind, settings):
    run = start(kind, steps=600, **settings)
    assert run.wait() == 0, run.tail()
    result = run.result
    assert result["launch"] == kind
    assert result["actors"] == settings.get("actors", 1)
    assert 598 < result["actor_steps"] <= 600
    assert result["learner_steps"] > 0
    assert result["samples_per_insert"]["observed"] == pytest.approx(2.0, rel=0.05)
    assert result["evaluation"][-1]["episodes"] == 3
    assert result["evaluation"][-1]["actor_steps"] == result["actor_steps"]
    assert run.manifest["counters"]["actor_steps"] == result["actor_steps"]


def test_a_stopped_run_goes_on_with_more_actors(start):
    first = start(actors=1, steps=ENDLESS, evaluate=200)
    first.until(lambda: first.steps() > 300)
    pids = first.roles().values()
    first.process.send_signal(signal.SIGINT)
    assert first.wait(40) == 1
    assert "with a checkpoint saved" in first.output
    assert not [pid for pid in pids if _exists(pid)]
    before = first.manifest["counters"]
    assert before["actor_steps"] >= 300
    assert before["replay"]["files"]

    budget = before["actor_steps"] + 2000
    second = start(actors=2, steps=budget, evaluate=500, resume=True)
    assert second.wait() == 0, second.tail()
    assert "goes on" in second.output
    assert budget - 2 < second.result["actor_steps"] <= budget
    assert second.result["learner_steps"] > before["learner_steps"]
    assert second.result["samples_per_insert"]["observed"] == pytest.approx(2.0, rel=0.05)
    steps = [one["actor_steps"] for one in second.result["evaluation"]]
    assert steps == sorted(set(steps))


def test_a_killed_run_goes_on_without_its_damaged_replay(start):
    first = start(steps=ENDLESS)
    first.until(lambda: (first.out / "checkpoints" / "checkpoint-00000003").exists())

    def chunks():
        return first.out / "replay" / first.manifest["counters"]["replay"]["folder"] / CHUNKS

    def holds_items():
        with contextlib.suppress(FileNotFoundError, TypeError):  # It is replaced, or the first.
            return chunks().stat().st_size > 0

    # On a slow machine the first checkpoints come before the first item.
    first.until(holds_items)
    first.process.kill()
    first.wait(10)
    before = first.manifest["counters"]
    content = bytearray(chunks().read_bytes())
    content[len(content) // 2] ^= 0xFF
    chunks().write_bytes(content)

    budget = before["actor_steps"] + 2000
    second = start(steps=budget, resume=True)
    assert second.wait() == 0, second.tail()
    assert f"{CHUNKS} is damaged" in second.output
    assert "the replay begins empty" in second.output
    assert budget - 2 < second.result["actor_steps"] <= budget


@pytest.mark.parametrize(
    ("what", "reason"),
    [("raises", "the simulator is on fire"), ("nan", "environment 0 of 2: Trouble: reward nan")],
)
def test_a_broken_environment_ends_the_run_by_name(start, what, reason):
    run = start(what=what, actors=1, steps=ENDLESS)
    run.until(lambda: len(run.roles()) >= 6)
    pids = run.roles().values()
    run.tell()
    assert run.wait(90) == 1, run.tail()
    last = run.output.strip().splitlines()[-1]
    assert last.startswith("troupe: actor failed: ")
    assert reason in last
    assert not [pid for pid in pids if _exists(pid)]


def test_two_runs_in_one_directory_are_refused(start):
    first = start(steps=ENDLESS)
    first.until(lambda: (first.out / "config.json").exists())
    second = start(steps=ENDLESS, resume=True)
    assert second.wait() == 2
    assert "another run is writing into" in second.output
    first.process.send_signal(signal.SIGTERM)
    assert first.wait() == 1


def _exists(pid):
    try:
        return state_and_parent(pid)[0] != "Z"
    except OSError:
        return False
