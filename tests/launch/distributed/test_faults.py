"""The fault contract: any role, killed or stopped at any moment, is back within 30 seconds."""

import os
import pathlib
import random
import re
import signal
import time

import pytest

pytest.importorskip("launchpad")
from troupe.launch.supervision import loopback

pytestmark = [pytest.mark.distributed, pytest.mark.long]

ROLES = ("actor/0", "evaluator", "inference", "variables", "counter", "replay", "learner")
FULL = bool(os.environ.get("TROUPE_FULL"))


def fault(run, name, number):
    """Hits a role; returns the seconds until another process has its place."""
    run.until(lambda: name in run.roles())
    first, began = run.roles()[name], time.monotonic()
    os.kill(first, number)
    run.until(lambda: run.roles().get(name, first) != first, 30)
    return time.monotonic() - began


def moves(run, seconds=30):
    """The run goes on: its counters rise within the time."""
    before = run.steps()
    run.until(lambda: run.steps() > before, seconds)


def listening_addresses(pids):
    """The addresses of every socket at which the processes listen."""
    inodes = set()
    for pid in pids:
        for link in pathlib.Path(f"/proc/{pid}/fd").iterdir():
            try:
                inodes.update(re.findall(r"socket:\[(\d+)\]", os.readlink(link)))
            except OSError:
                continue
    ports = set()
    for table in ("tcp", "tcp6"):
        for line in pathlib.Path(f"/proc/self/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and fields[9] in inodes:
                ports.add(int(fields[1].split(":")[1], 16))
    return {port: loopback.listening(port) for port in ports}


def test_every_role_is_killed_once(start):
    run = start(actors=2, inference_servers=1, steps=6000)
    run.until(lambda: set(ROLES) <= set(run.roles()))
    run.until(lambda: run.steps() > 0)
    sockets = listening_addresses(run.roles().values())
    assert len(sockets) == 4  # Counter, variable server, replay, inference server.
    assert all(loopback.is_loopback(a) for found in sockets.values() for a in found)
    pids = set(run.roles().values())
    for name in ROLES:
        assert fault(run, name, signal.SIGKILL) < 30
        pids |= set(run.roles().values())
    assert run.wait() == 0, run.tail()
    for name in ROLES:
        assert f"{name} failed: killed by SIGKILL; it is started again" in run.output
    assert 6000 <= run.result["actor_steps"] <= 6004
    assert not [pid for pid in pids if pathlib.Path(f"/proc/{pid}").exists()]


@pytest.mark.skipif(not FULL, reason="takes three minutes; set TROUPE_FULL=1")
@pytest.mark.parametrize("name", ROLES)
def test_a_stopped_role_is_replaced(start, name):
    run = start(actors=2, inference_servers=1, steps=1_000_000)
    run.until(lambda: run.steps() > 0)
    assert fault(run, name, signal.SIGSTOP) < 30
    moves(run)
    run.process.send_signal(signal.SIGTERM)
    assert run.wait(60) == 1
    assert "with a checkpoint saved" in run.output


@pytest.mark.skipif(not FULL, reason="takes ten minutes; set TROUPE_FULL=1")
def test_fifty_kills(start):
    random.seed(0)
    run = start(actors=2, inference_servers=1, steps=1_000_000, spi=1.0)
    run.until(lambda: set(ROLES) <= set(run.roles()))
    saved, steps = -1, 0
    for kill in range(50):
        name = ROLES[kill % len(ROLES)]
        assert fault(run, name, signal.SIGKILL) < 30
        if kill >= len(ROLES):
            time.sleep(random.uniform(0.0, 6.0))  # The first ones hit roles that still begin.
        if (run.out / "checkpoints").exists() and list(run.out.glob("checkpoints/checkpoint-*")):
            counters = run.manifest["counters"]
            assert counters["actor_steps"] >= saved
            saved = counters["actor_steps"]
        assert run.steps() >= steps
        steps = run.steps()
    moves(run, 60)
    run.process.send_signal(signal.SIGTERM)
    assert run.wait(60) == 1
    assert "with a checkpoint saved" in run.output


@pytest.mark.skipif(not FULL, reason="takes a minute; set TROUPE_FULL=1")
def test_a_hanging_environment_ends_the_run_by_name(start):
    run = start(what="hangs", actors=1, steps=5000, hang_seconds=2.0)
    assert run.wait(150) == 1
    last = run.output.strip().splitlines()[-1]
    assert last.startswith("troupe: actor failed: hangs: no step for 2 s")
