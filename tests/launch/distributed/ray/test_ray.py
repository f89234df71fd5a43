"""Runs on Ray, on a cluster of this machine that each starts and ends."""

import json
import os
import pathlib
import signal
import socket
import subprocess
import sys
import time
import types
from unittest import mock

import pytest

from troupe.baselines.command.line import main
from troupe.launch.distributed import addresses

pytest.importorskip("ray", reason="Ray is not installed: pip install 'troupe[ray]'")

import ray
from ray import exceptions

from troupe.launch.distributed.engines.ray import (
    actor_client,
    cluster,
    cluster_nodes,
    host,
    launcher,
)
from troupe.launch.distributed.roles import rpc
from troupe.launch.distributed.supervision import heartbeat
from troupe.launch.distributed.supervision.role import Settings

from ....processes import python
from ....waiting import wait_for

ROLES = {"actor/0", "actor/1", "evaluator", "variables", "counter", "replay", "learner"}
BUDGET = 1200
FULL = bool(os.environ.get("TROUPE_FULL"))


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


def nothing_is_left(*runs):
    """Neither a process of the clusters of runs that have ended, nor a folder."""
    for run in runs:
        name = f"troupe-{run.process.pid}-"
        for parent in ("/tmp", "/dev/shm"):
            assert not list(pathlib.Path(parent).glob(f"{name}*"))
        deadline = time.monotonic() + 20
        while processes(name) and time.monotonic() < deadline:
            time.sleep(0.1)
        assert not processes(name)


def fault(run, name, number=signal.SIGKILL):
    """Hits a role; returns the seconds until another process has its place."""
    run.until(lambda: name in run.ray_roles(), pause=0.5)
    first, began = run.ray_roles()[name], time.monotonic()
    os.kill(first, number)
    run.until(lambda: run.ray_roles().get(name, first) != first, 60, pause=0.5)
    return time.monotonic() - began


def started(start):
    """A run at work that is not at its end before it is told."""
    run = start("processes", engine="ray", what="unhurried", actors=2, steps=BUDGET)
    run.until(lambda: run.steps() > 0)
    run.until(lambda: set(run.ray_roles()) >= ROLES, pause=0.5)
    return run


@pytest.mark.long
def test_roles_are_killed_and_the_budget_is_exact(start):
    run = started(start)
    pids = set(run.ray_roles().values())
    niceness = {os.getpriority(os.PRIO_PROCESS, pid) for pid in (run.process.pid, *pids)}
    assert len(niceness) == 1, "roles are behind others that the machine has to do"
    for name in ("actor/0", "replay", "learner"):
        fault(run, name)
        pids |= set(run.ray_roles().values())
    run.tell()
    assert run.wait() == 0, run.tail()
    assert run.output.count("failed: its process was ended from outside") == 3
    result = run.result
    config = json.loads((run.out / "config.json").read_text())
    for said in (result, config):
        assert (said["launch"], said["engine"]) == ("processes", "ray")
    assert result["actors"] == 2
    assert BUDGET - 2 < result["actor_steps"] <= BUDGET
    assert result["samples_per_insert"]["observed"] == pytest.approx(2.0, rel=0.05)
    assert result["evaluation"][-1]["episodes"] == 3
    assert not [pid for pid in pids if pathlib.Path(f"/proc/{pid}").exists()]
    nothing_is_left(run)


@pytest.mark.long
@pytest.mark.skipif(not FULL, reason="takes a minute; set TROUPE_FULL=1")
def test_every_role_is_killed_once_and_the_run_goes_on(start):
    run = started(start)
    pids = set(run.ray_roles().values())
    for name in sorted(ROLES):
        fault(run, name)
        pids |= set(run.ray_roles().values())
    run.until(lambda: set(run.ray_roles()) >= ROLES, pause=0.5)
    steps = run.steps()

    def goes_on():
        saved = run.manifest["counters"]
        return saved["actor_steps"] > steps and saved["replay"]

    run.until(goes_on, pause=0.5)  # All of them answer, the replay too.
    for name in ROLES:
        assert f"{name} failed: its process was ended from outside" in run.output
    run.process.send_signal(signal.SIGTERM)
    assert run.wait(90) == 1, run.tail()
    assert "with a checkpoint saved" in run.output
    assert not [pid for pid in pids if pathlib.Path(f"/proc/{pid}").exists()]
    saved = run.manifest["counters"]
    assert saved["replay"]["folder"]
    run.tell()
    again = start("ray", what="unhurried", actors=1, steps=BUDGET, resume=True)
    assert again.wait() == 0, again.tail()
    assert f"at {saved['actor_steps']:,} actor steps" in again.output
    result = again.result
    assert (result["launch"], result["actors"]) == ("ray", 1)
    assert BUDGET - 2 < result["actor_steps"] <= BUDGET
    assert result["samples_per_insert"]["observed"] == pytest.approx(2.0, rel=0.05)
    assert result["evaluation"][-1]["episodes"] == 3
    nothing_is_left(run, again)


@pytest.mark.long
@pytest.mark.skipif(not FULL, reason="takes a minute; set TROUPE_FULL=1")
@pytest.mark.parametrize(
    "roles",
    [
        {"actors": 2, "inference_servers": 1, "evaluators": 2},
        {"actors": 3, "actors_per_process": 2, "actor_cpus": 0.25},
    ],
    ids=["inference server", "shared processes"],
)
def test_the_result_is_that_of_every_launch(start, roles):
    run = start("ray", steps=600, **roles)
    assert run.wait() == 0, run.tail()
    other = start("one-process", out="one", steps=600)
    assert other.wait() == 0, other.tail()
    result = run.result
    assert (result["launch"], result["actors"]) == ("ray", roles["actors"])
    assert result.keys() == other.result.keys()
    for same in ("agent", "env", "seed", "mesh", "versions", "learner_hosts", "ended"):
        assert result[same] == other.result[same], same
    assert 598 < result["actor_steps"] <= 600
    assert result["samples_per_insert"]["target"] == other.result["samples_per_insert"]["target"]
    assert result["samples_per_insert"]["observed"] == pytest.approx(2.0, rel=0.05)
    assert result["evaluation"][-1].keys() == other.result["evaluation"][-1].keys()
    assert result["evaluation"][-1]["actor_steps"] == result["actor_steps"]
    assert run.manifest["counters"]["actor_steps"] == result["actor_steps"]


@pytest.mark.long
@pytest.mark.skipif(not FULL, reason="takes two minutes; set TROUPE_FULL=1")
def test_stopped_roles_are_replaced(start):
    run = started(start)
    for name in ("actor/0", "replay", "learner"):
        assert fault(run, name, signal.SIGSTOP) < 60
    run.tell()
    assert run.wait() == 0, run.tail()
    assert run.output.count("failed: no sign of life for 1") == 3
    assert BUDGET - 2 < run.result["actor_steps"] <= BUDGET


@pytest.mark.long
@pytest.mark.skipif(not FULL, reason="takes a minute; set TROUPE_FULL=1")
def test_a_hanging_environment_ends_the_run_by_name(start):
    run = start("ray", what="hangs", actors=1, steps=5000, hang_seconds=2.0)
    run.tell()
    assert run.wait(150) == 1
    last = run.output.strip().splitlines()[-1]
    assert last.startswith("troupe: actor failed: hangs: no step for 2 s")
    nothing_is_left(run)


def test_whom_a_role_answers():
    role = host.RoleHost(host.Place("counter", "run", 1, None, "/nowhere/log", {}, 0, None), {}, [])
    role.serve([1, 2, 2])
    assert role.call(1, "count", (2,)) == (host.DONE, 2)
    for other in (0, 2):
        assert role.call(other, "count", (2,)) == (host.OTHER, 1)


@pytest.mark.parametrize(
    ("node", "is_made", "log"),
    [
        ("here", True, "log"),
        ("there", True, "log"),
        ("here", False, "log"),
        ("here", True, "a/log"),
    ],
)
def test_a_role_of_the_same_node_gives_its_signs_without_being_asked(
    tmp_path, monkeypatch, node, is_made, log
):
    context = types.SimpleNamespace(get_node_id=lambda: node)
    monkeypatch.setattr(host.ray, "get_runtime_context", lambda: context)
    path = tmp_path / "board"
    board = heartbeat.Board(path, 3) if is_made else None
    row = host.BoardRow("here", str(path), 1)
    place = host.Place("actor", "run", 1, None, str(tmp_path / log), {}, 0, row)
    role = host.RoleHost(place, {}, [])
    done = role._attach()
    heartbeat.beat()
    signs = role.signs()
    is_shown = node == "here" and is_made and log == "log"
    assert (signs.pid, signs.node, signs.shown) == (os.getpid(), node, is_shown)
    if signs.shown:
        assert (signs.alive, signs.loop) == (None, None)
        wait_for(lambda: min(board.read(1)) > 0.0)
        assert board.read(0) == board.read(2) == (0.0, 0.0)
    else:
        wait_for(lambda: role.signs().alive is not None)
        assert role.signs().loop is not None
    done.set()


ALONE = """
import pathlib, sys, threading, time
import ray
from troupe.launch.distributed.engines.ray import cluster, launcher
from troupe.launch.distributed.supervision import heartbeat, role

class Says:
    def __init__(self, path):
        self.path = path

    def run(self):
        is_main = threading.current_thread() is threading.main_thread()
        title = pathlib.Path("/proc/self/cmdline").read_text().split(".")[0].rstrip("\\0 ")
        self.path.write_text(f"{'main' if is_main else 'other'} {title}")
        while not role.pause(0.05):
            pass

folder = pathlib.Path(sys.argv[1])
(folder / "run").mkdir()
board, settings = heartbeat.Board(folder / "board", 2), role.Settings()
with cluster.connected(None, lambda cpus: 2 * [{"CPU": 0.5}], None, folder / "run") as here:
    seat = launcher.Seat(0, here.node, None)
    roles = launcher.RayLauncher(here, seat, folder, folder, board)
    handles, places = [], [folder / "quiet", folder / "answering"]
    for row, place in enumerate(places):
        payload = ray.put(ray.cloudpickle.dumps((Says, {"path": place})))
        options = {"num_cpus": 0.5, "max_concurrency": row}
        start = launcher.Start(place.name, row, payload, options, True, row > 0)
        handles.append(roles.start(start, settings))

    def until(condition):
        while not condition():
            roles.poll()
            time.sleep(0.01)

    until(lambda: all(place.exists() and place.read_text() for place in places))
    for handle in handles:
        handle.terminate()
    until(lambda: not any(handle.running for handle in handles))
    roles.close()
print([place.read_text() for place in places], [handle.exit_code for handle in handles])
"""


@pytest.mark.long
def test_a_role_that_answers_no_call_has_the_main_thread(tmp_path):
    """If its signs of life are seen without a call; its process has its name, and ends when told.

    In a process of its own, as Ray's token stays in one that has started a cluster.
    """
    said = "['main ray::quiet', 'other ray::answering'] [0, 0]\n"
    assert python(ALONE, tmp_path, seconds=120.0) == said


def test_only_an_actor_that_is_not_there_is_waited_for(monkeypatch):
    remote, broken = actor_client.RayRemote("run", 1, "replay"), mock.Mock()
    broken.call.remote.side_effect = ValueError("a mistake")
    looked_up = mock.Mock(side_effect=[ValueError("Failed to look up actor"), broken])
    monkeypatch.setattr(actor_client.ray, "get_actor", looked_up)
    with pytest.raises(rpc.Unreachable, match="there is no replay yet"):
        remote.size()
    with pytest.raises(ValueError, match="a mistake"):
        remote.size()


def test_only_a_name_that_is_taken_is_waited_for(tmp_path, monkeypatch):
    here, seat = types.SimpleNamespace(node="here", run="run"), launcher.Seat(0, "here", None)
    board, kind = heartbeat.Board(tmp_path / "board", 1), mock.Mock()
    failures = [exceptions.ActorAlreadyExistsError("actor"), ValueError("a mistake")]
    kind.options.return_value.remote.side_effect = failures
    monkeypatch.setattr(launcher, "_remote", lambda **_: lambda made: kind)
    roles = launcher.RayLauncher(here, seat, tmp_path, tmp_path, board)
    start, settings = launcher.Start("actor", 0, None, {}, True, True), Settings()
    handle = roles.start(start, settings)
    roles._make(start, settings, handle)
    assert handle.actor is None
    with pytest.raises(ValueError, match="a mistake"):
        roles._make(start, settings, handle)


def test_what_a_role_prints_where_the_logs_are_not_seen(tmp_path):
    """In a process of its own, which has its output sent elsewhere."""
    code = f"""
import os, sys
import ray
from troupe.launch.distributed.engines.ray import host
from troupe.launch.files import result

class Talks:
    def run(self):
        print("said by itself")
        os.system("echo said by its child")
        self.asked = made._own_log.take(100)
        raise OSError("and why it ended")

here = {str(tmp_path)!r}, {str(tmp_path / "unseen/actor-1.log")!r}, result.versions(), 0, None
place = host.Place("actor/1", "run", 1, *here)
made, talks, shown = host.RoleHost(place, {{}}, []), Talks(), os.dup(1)
end = made.run(ray.cloudpickle.dumps((lambda: sys.modules["__main__"].talks, {{}})))
os.write(shown, talks.asked + b"|" + end.said)
"""
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=True
    )
    asked, rest = done.stdout.split("|")
    assert asked.splitlines() == ["said by itself", "said by its child"]
    assert rest.startswith("Traceback")
    assert "OSError: and why it ended" in rest
    log = launcher.RayHandle(tmp_path / "actor-1.log", lambda: True)
    log.write(asked.encode())
    log.write(rest.encode())
    assert log.log.read_text() == asked + rest


@pytest.mark.parametrize(
    ("request_", "words"),
    [
        ("--launch ray --listen 127.0.0.1", ["--listen is for threads and processes"]),
        ("--actor-cpus 2", ["--actor-cpus needs --launch threads, processes or ray"]),
        ("--learner-gpus 2", ["--learner-gpus needs --launch threads, processes or ray"]),
        ("--launch ray --actor-cpus -1", ["actor_cpus is -1.0"]),
    ],
)
def test_what_cannot_be_asked_for(capsys, tmp_path, request_, words):
    refused(capsys, tmp_path, request_, words)


def test_no_cluster_answers(capsys, tmp_path):
    for address in (f"127.0.0.1:{addresses.free_ports(1)[0]}", "nowhere"):
        words = [f"no Ray cluster answers at {address}", "leave out --address"]
        refused(capsys, tmp_path, f"--launch ray --address {address}", words)
    own = ray.util.get_node_ip_address()
    with socket.create_server(("127.0.0.1", 0)) as server:  # Of a cluster that loopback alone has.
        address = f"127.0.0.1:{server.getsockname()[1]}"
        words = [f"no Ray cluster answers at {address}", f"Ray takes 127.0.0.1 for {own}"]
        if own != "127.0.0.1":
            refused(capsys, tmp_path, f"--launch ray --address {address}", words)


def test_actors_take_what_there_is():
    asked = lambda share: [{"CPU": 1.0}, *2 * [{"CPU": share}]]  # noqa: E731
    for has, share in ((3, 1.0), (2, 0.5), (1.5, 0.25)):
        with mock.patch.object(
            cluster_nodes, "alive", lambda has=has: [{"Resources": {"CPU": has}}]
        ):
            assert cluster.share_with_room(asked, None, "here") == share


def refused(capsys, tmp_path, request_, words):
    out = tmp_path / "run"
    arguments = ["train", "dqn", "--env", "CartPole-v1", "--out", str(out)]
    assert main([*arguments, *request_.split()]) == 2
    error = capsys.readouterr().err.strip().splitlines()[-1]
    assert error.startswith("troupe: ")
    for word in words:
        assert word in error, error
    assert not out.exists()
