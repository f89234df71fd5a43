"""The fault contract: any role, killed or stopped at any moment, is back within 30 seconds."""

import functools
import os
import pathlib
import random
import signal
import time

import pytest

pytest.importorskip("launchpad")

pytestmark = [pytest.mark.distributed, pytest.mark.long]

ROLES = ("actor/0", "evaluator", "inference", "variables", "counter", "replay", "learner")
BUDGET = 4000
FULL = bool(os.environ.get("TROUPE_FULL"))


def fault(run, name, number):
    """Hits a role, and waits until another process has its place."""
    run.until(lambda: name in run.roles())
    first = run.roles()[name]
    os.kill(first, number)
    run.until(lambda: run.roles().get(name, first) != first, run.RECOVERY)


def moves(run, seconds=None):
    """The run goes on: its counters rise within the time."""
    before = run.steps()
    run.until(lambda: run.steps() > before, run.RECOVERY if seconds is None else seconds)


def test_every_role_is_killed_once(start):
    run = start(what="unhurried", actors=2, inference_servers=1, steps=BUDGET)
    run.until(lambda: set(ROLES) <= set(run.roles()))
    run.until(lambda: run.steps() > 0)
    sockets = run.listening()
    assert len(sockets) == 4  # Counter, variable server, replay, inference server.
    assert {a.removeprefix("::ffff:") for found in sockets.values() for a in found} == {"127.0.0.1"}
    pids = set(run.roles().values())
    for name in ROLES:
        fault(run, name, signal.SIGKILL)
        pids |= set(run.roles().values())
    run.tell()
    assert run.wait() == 0, run.tail()
    for name in ROLES:
        assert f"{name} failed: killed by SIGKILL; it is started again" in run.output
    assert BUDGET - 2 < run.result["actor_steps"] <= BUDGET
    assert not [pid for pid in pids if pathlib.Path(f"/proc/{pid}").exists()]


def test_what_roles_are_forked_from_is_killed(start):
    run = start(what="unhurried", actors=2, inference_servers=1, steps=BUDGET)
    run.until(lambda: set(ROLES) <= set(run.roles()))
    run.until(lambda: run.steps() > 0)
    lost = set()
    for zygote in run.zygotes():
        children = _roles_of(run, zygote)
        assert len(children) >= 4
        began = time.monotonic()
        os.kill(zygote, signal.SIGKILL)
        run.until(functools.partial(_are_back, run, children), run.RECOVERY)
        moves(run, run.RECOVERY - (time.monotonic() - began))
        lost |= {zygote, *children.values()}
    assert len(lost) >= 2 + len(ROLES)
    run.tell()
    assert run.wait() == 0, run.tail()
    for name in ROLES:
        assert f"{name} failed: killed by SIGKILL; it is started again" in run.output
    assert BUDGET - 2 < run.result["actor_steps"] <= BUDGET
    assert not [pid for pid in lost if pathlib.Path(f"/proc/{pid}").exists()]


def _roles_of(run, zygote):
    """Process ids of the roles that were forked from one zygote, by name."""
    children = pathlib.Path(f"/proc/{zygote}/task/{zygote}/children").read_text().split()
    return {name: pid for name, pid in run.roles().items() if str(pid) in children}


def _are_back(run, lost):
    found = run.roles()
    return all(found.get(name, pid) != pid for name, pid in lost.items())


@pytest.mark.skipif(not FULL, reason="takes three minutes; set TROUPE_FULL=1")
@pytest.mark.parametrize("name", ROLES)
def test_a_stopped_role_is_replaced(start, name):
    run = start(actors=2, inference_servers=1, steps=1_000_000)
    run.until(lambda: run.steps() > 0)
    fault(run, name, signal.SIGSTOP)
    moves(run)
    run.process.send_signal(signal.SIGTERM)
    assert run.wait() == 1
    assert "with a checkpoint saved" in run.output


@pytest.mark.skipif(not FULL, reason="takes ten minutes; set TROUPE_FULL=1")
def test_fifty_kills(start):
    random.seed(0)
    run = start(actors=2, inference_servers=1, steps=1_000_000, spi=1.0)
    run.until(lambda: set(ROLES) <= set(run.roles()))
    saved, steps = -1, 0
    for kill in range(50):
        name = ROLES[kill % len(ROLES)]
        fault(run, name, signal.SIGKILL)
        if kill >= len(ROLES):
            time.sleep(random.uniform(0.0, 6.0))  # The first ones hit roles that still begin.
        if (run.out / "checkpoints").exists() and list(run.out.glob("checkpoints/checkpoint-*")):
            counters = run.manifest["counters"]
            assert counters["actor_steps"] >= saved
            saved = counters["actor_steps"]
        assert run.steps() >= steps
        steps = run.steps()
    moves(run)
    run.process.send_signal(signal.SIGTERM)
    assert run.wait() == 1
    assert "with a checkpoint saved" in run.output


@pytest.mark.skipif(not FULL, reason="takes a minute; set TROUPE_FULL=1")
def test_a_hanging_environment_ends_the_run_by_name(start):
    run = start(what="hangs", actors=1, steps=5000, hang_seconds=2.0)
    run.tell()
    assert run.wait(150) == 1
    last = run.output.strip().splitlines()[-1]
    assert last.startswith("troupe: actor failed: hangs: no step for 2 s")
