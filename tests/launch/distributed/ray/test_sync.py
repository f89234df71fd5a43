"""Parameters of a learner on a mesh, in an inference server and an evaluator with others."""

import os
import pathlib
import signal
import time

import jax
import pytest

pytest.importorskip("ray", reason="Ray is not installed: pip install 'troupe[ray]'")

from troupe.agents.variables.stored import StoredArray
from troupe.agents.variables.version_board import read_version

TOKENLAND = pathlib.Path(__file__).with_name("tokenland.py")
LEARNER = {"mesh": "model=4", "schedule": "megatron:model"}
SERVERS = {
    "inference_servers": 1,
    "inference_mesh": "model=2",
    "inference_schedule": "megatron:model",
}


def versions(run):
    """Those that the learner has laid down: number and variables."""
    found = []
    for parent in ("/dev/shm", "/tmp"):
        for path in pathlib.Path(parent).glob(f"troupe-{run.process.pid}-*/**/version-*"):
            try:
                found.append((int(path.name.split("-")[1]), read_version(path)))
            except FileNotFoundError:  # A newer one has come.
                continue
    return found


def newest(run):
    """The number of the newest; -1 where there is none."""
    return max((number for number, _ in versions(run)), default=-1)


@pytest.mark.long
def test_blocks_are_published_and_what_is_killed_meanwhile_is_back(start):
    settings = {"what": "unhurried", "actors": 1, "steps": 600, **LEARNER, **SERVERS}
    run = start("processes", engine="ray", **settings)
    run.until(lambda: run.steps() > 0 and versions(run), pause=0.5)
    kinds = {type(leaf) for _, found in versions(run) for leaf in jax.tree.leaves(found)}
    assert StoredArray in kinds
    for name in ("learner", "inference"):
        first, before = run.ray_roles()[name], newest(run)
        began = time.monotonic()
        os.kill(first, signal.SIGKILL)
        run.until(lambda: run.ray_roles().get(name, first) != first, pause=0.5)  # noqa: B023
        run.until(lambda: newest(run) > before, pause=0.5)  # noqa: B023
        assert time.monotonic() - began < 2 * run.RECOVERY
    run.tell()
    assert run.wait() == 0, run.tail()
    assert run.output.count("failed: its process was ended from outside") == 2
    assert 598 < run.result["actor_steps"] <= 600
    assert run.result["evaluation"][-1]["episodes"] == 3


@pytest.mark.long
@pytest.mark.parametrize(
    ("killed", "halted"),
    [("learner", "learner"), ("inference", "inference"), ("replay", "learner")],
)
def test_killed_amid_a_sync_it_is_back_and_no_answer_is_learned_from_twice(start, killed, halted):
    """The way of the parameters stands still when a process is killed, whatever the machine."""
    one = {"mesh": "model=2", "schedule": "megatron:model", "actors": 1}
    run = start("processes", engine="ray", script=TOKENLAND, **one, **SERVERS)
    halt, stands, learned = (
        run.out.with_suffix(f".{name}")
        for name in (f"halt-{halted}", f"halted-{halted}", "learned")
    )

    def batches():
        return learned.read_text().splitlines() if learned.exists() else []

    run.until(lambda: len(batches()) > 8 and newest(run) > 0, pause=0.2)
    halt.touch()
    run.until(stands.exists, pause=0.02)
    first = run.ray_roles()[killed]
    os.kill(first, signal.SIGKILL)
    began, known, laid_down = time.monotonic(), len(batches()), newest(run)
    halt.unlink()
    run.until(lambda: run.ray_roles().get(killed, first) != first, pause=0.1)
    # Answers of what is back, and with parameters that came since.
    run.until(lambda: newest(run) > laid_down + 1, pause=0.1)
    run.until(lambda: len(batches()) > known + 8, pause=0.1)
    seconds = time.monotonic() - began
    print(f"{killed} killed amid a sync: whole again in {seconds:.1f} s")
    assert seconds < run.RECOVERY
    numbers = [number for line in batches() for number in line.split()[1:]]
    assert len(numbers) == len({*numbers})
    os.kill(run.process.pid, signal.SIGTERM)
    run.wait()
    assert run.output.count("failed: its process was ended from outside") == 1, run.tail()


def reserved(run):
    """The number of the newest version whose parts the ranks of a learner were asked for."""
    for parent in ("/dev/shm", "/tmp"):
        pattern = f"troupe-{run.process.pid}-*/*/variables/0/reserved"
        for path in pathlib.Path(parent).glob(pattern):
            return int(path.read_text())
    return -1


@pytest.mark.long
@pytest.mark.skipif(not os.environ.get("TROUPE_FULL"), reason="minutes; set TROUPE_FULL=1")
def test_each_rank_of_a_learner_publishes_its_part_and_a_lost_one_is_back(start):
    two = {"mesh": "data=2,model=2", "schedule": "batch:data,megatron:model,zero3:data"}
    run = start(
        "processes",
        engine="ray",
        script=TOKENLAND,
        **{**two, "learner_hosts": 2, "actors": 1},
        **SERVERS,
    )
    # A version is asked for once the one before was read.
    run.until(lambda: reserved(run) > 2, pause=0.2)
    assert not versions(run)  # Nobody has laid down a whole one.
    first, before = run.ray_roles()["learner/1"], reserved(run)
    os.kill(first, signal.SIGKILL)
    began = time.monotonic()
    run.until(lambda: run.ray_roles().get("learner/1", first) != first, pause=0.2)
    run.until(lambda: reserved(run) > before + 2, pause=0.2)
    assert time.monotonic() - began < run.RECOVERY
    os.kill(run.process.pid, signal.SIGTERM)
    run.wait()
    assert "the 2 of its gang are started again" in run.output, run.tail()
