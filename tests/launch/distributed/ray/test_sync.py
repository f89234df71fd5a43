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
