"""Runs on Ray, on a cluster of this machine that each starts and ends."""

import os
import pathlib
import signal
import time

import pytest

from troupe.baselines.command.line import main
from troupe.launch.distributed import addresses

pytest.importorskip("ray", reason="Ray is not installed: pip install 'troupe[ray]'")

ROLES = {"actor/0", "actor/1", "evaluator", "variables", "counter", "replay", "learner"}
BUDGET = 1200


def processes(word):
    """Process ids of those whose command line has a word."""
    found = set()
    for path in pathlib.Path("/proc").glob("[0-9]*/cmdline"):
        try:
            text = path.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if word in text:
            found.add(int(path.parts[2]))
    return found


@pytest.fixture
def nothing_left():
    """A cluster of a test leaves no process and no folder."""
    before = processes("raylet"), set(pathlib.Path("/tmp").glob("troupe-*"))
    yield
    deadline = time.monotonic() + 20
    while processes("raylet") - before[0] and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not processes("raylet") - before[0]
    assert not set(pathlib.Path("/tmp").glob("troupe-*")) - before[1]


def fault(run, name, number=signal.SIGKILL):
    """Hits a role; returns the seconds until another process has its place."""
    run.until(lambda: name in run.ray_roles())
    first, began = run.ray_roles()[name], time.monotonic()
    os.kill(first, number)
    run.until(lambda: run.ray_roles().get(name, first) != first, 60)
    return time.monotonic() - began


@pytest.mark.long
def test_every_role_is_killed_once(start, nothing_left):
    run = start("ray", what="unhurried", actors=2, steps=BUDGET)
    run.until(lambda: set(run.ray_roles()) >= ROLES)
    run.until(lambda: run.steps() > 0)
    pids = set(run.ray_roles().values())
    for name in sorted(ROLES):
        fault(run, name)
        pids |= set(run.ray_roles().values())
    run.tell()
    assert run.wait() == 0, run.tail()
    for name in ROLES:
        assert f"{name} failed: its process was ended from outside" in run.output
    result = run.result
    assert result["launch"] == "ray"
    assert result["actors"] == 2
    assert BUDGET - 2 < result["actor_steps"] <= BUDGET
    assert result["evaluation"][-1]["episodes"] == 3
    assert not [pid for pid in pids if pathlib.Path(f"/proc/{pid}").exists()]


@pytest.mark.long
def test_a_run_is_stopped_and_resumed(start, nothing_left):
    run = start("ray", actors=1, steps=100_000)
    run.until(lambda: run.steps() > 200)
    run.process.send_signal(signal.SIGTERM)
    assert run.wait(60) == 1, run.tail()
    assert "with a checkpoint saved" in run.output
    saved = run.manifest["counters"]
    assert saved["replay"]["folder"]
    steps = saved["actor_steps"] + 500
    again = start("ray", actors=2, steps=steps, resume=True)
    assert again.wait() == 0, again.tail()
    assert f"at {saved['actor_steps']:,} actor steps" in again.output
    assert steps - 2 < again.result["actor_steps"] <= steps
    assert again.result["samples_per_insert"]["observed"] == pytest.approx(2.0, rel=0.05)


@pytest.mark.parametrize(
    ("request_", "words"),
    [
        ("--launch ray --listen 127.0.0.1", ["--listen is for threads and processes"]),
        ("--actor-cpus 2", ["--actor-cpus needs --launch ray"]),
        ("--launch ray --actor-cpus -1", ["actor_cpus is -1.0"]),
    ],
)
def test_what_cannot_be_asked_for(capsys, tmp_path, request_, words):
    refused(capsys, tmp_path, request_, words)


def test_no_cluster_answers(capsys, tmp_path):
    for address in (f"127.0.0.1:{addresses.free_ports(1)[0]}", "nowhere"):
        words = [f"no Ray cluster answers at {address}", "leave out --address"]
        refused(capsys, tmp_path, f"--launch ray --address {address}", words)


def refused(capsys, tmp_path, request_, words):
    out = tmp_path / "run"
    arguments = ["train", "dqn", "--env", "CartPole-v1", "--out", str(out)]
    assert main([*arguments, *request_.split()]) == 2
    error = capsys.readouterr().err.strip().splitlines()[-1]
    assert error.startswith("troupe: ")
    for word in words:
        assert word in error, error
    assert not out.exists()
