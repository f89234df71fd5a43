"""Supervision: roles that die, hang, are stopped or cannot be helped; and nothing left behind."""

import dataclasses
import functools
import os
import pathlib
import select
import signal
import subprocess
import sys
import time

import pytest

pytest.importorskip("launchpad")

import cloudpickle

from troupe.launch.distributed.engines.launchpad import processes
from troupe.launch.distributed.engines.launchpad.processes import ProcessLauncher
from troupe.launch.distributed.engines.launchpad.threads import ThreadLauncher
from troupe.launch.distributed.supervision import heartbeat, role
from troupe.launch.distributed.supervision.role import Settings
from troupe.launch.distributed.supervision.supervisor import Member, RoleError, Supervisor
from troupe.launch.errors import RequestError

pytestmark = pytest.mark.distributed

QUICK = Settings(stopped_seconds=2.0, hang_seconds=2.0, max_restarts=1)


def works():
    while not role.pause(0.05):
        pass


def hangs():
    role.pause(0.0)
    time.sleep(60)


def fails():
    raise OSError("no\nsuch luck")


def cannot():
    raise RequestError("asked for the impossible")


def ends():
    role.pause(0.0)


def imports(path):
    modules = [name for name in ("tensorflow", "reverb", "jax", "launchpad") if name in sys.modules]
    pathlib.Path(path).write_text(" ".join(modules))


class Program:
    """Roles under a supervisor, as processes or threads."""

    def __init__(self, folder, kind, *functions, settings=QUICK):
        self.said = []
        self.board = heartbeat.Board(folder / heartbeat.FILE, len(functions))
        self.launcher = (ProcessLauncher if kind == "processes" else ThreadLauncher)(
            folder, folder, self.board
        )
        payload = folder / "payload"
        payload.write_bytes(cloudpickle.dumps(functions))
        members = []
        for i, function in enumerate(functions):
            if kind == "processes":
                start = functools.partial(self.launcher.start, f"role/{i}", payload, i, i, settings)
            else:
                start = functools.partial(self.launcher.start, f"role/{i}", function, i, settings)
            members.append(Member(f"role/{i}", i, settings, start))
        self.supervisor = Supervisor(self.launcher, self.board, members, self.said.append)
        self.members = members

    def until(self, condition, seconds=60.0):
        deadline = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < deadline, (self.said, "waited in vain")
            self.supervisor.poll()
            time.sleep(0.02)

    def up(self, index):
        return self.board.read(index)[1] > 0

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        self.supervisor.stop(patience=1.0)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP, signal.SIGSEGV])
def test_a_lost_process_is_replaced(tmp_path, number):
    # A process that was stopped takes no steps either; that is told later than that it is silent.
    silent_first = dataclasses.replace(QUICK, hang_seconds=60.0)
    with Program(tmp_path, "processes", works, settings=silent_first) as program:
        program.until(lambda: program.up(0))
        (member,) = program.members
        first = member.handle.pid
        os.kill(first, number)
        program.until(lambda: member.handle and member.handle.pid not in (None, first))
        program.until(lambda: program.up(0))
        assert not pathlib.Path(f"/proc/{first}").exists()
        expected = "no sign of life" if number == signal.SIGSTOP else number.name
        assert expected in program.said[0]


def test_roles_that_are_not_at_work_yet_are_named(tmp_path):
    with Program(tmp_path, "threads", works, ends) as program:
        assert program.supervisor.starting() == ["role/0", "role/1"]
        program.until(lambda: not program.supervisor.starting())


def writes():
    os.write(2, b"a library's line\n")


def test_what_libraries_print_in_threads_goes_to_a_file(tmp_path, capfd):
    with Program(tmp_path, "threads", writes) as program:
        program.until(lambda: program.members[0].handle and not program.members[0].handle.running)
        print("a line of ours", file=sys.stderr)
    os.write(2, b"after it\n")
    assert (tmp_path / "libraries.log").read_text() == "a library's line\n"
    assert capfd.readouterr().err == "a line of ours\nafter it\n"


@pytest.mark.long
def test_what_roles_are_forked_from_is_stopped(tmp_path, monkeypatch):
    """Nobody noticed until a role was to start, and then for two minutes."""
    monkeypatch.setattr(processes, "SILENT_SECONDS", 2.0)
    with Program(tmp_path, "processes", works) as program:
        program.until(lambda: program.up(0))
        (member,) = program.members
        first, (zygote,) = member.handle.pid, program.launcher._zygotes.values()
        os.kill(zygote.process.pid, signal.SIGSTOP)
        program.until(lambda: member.handle and member.handle.pid not in (None, first))
        program.until(lambda: program.up(0))
        assert not pathlib.Path(f"/proc/{zygote.process.pid}").exists()
        assert len(program.said) == 1


def test_what_roles_are_forked_from_ends_quietly_with_its_supervisor(tmp_path):
    """Of a supervisor that left an answer unread it said that the connection was reset."""
    log = tmp_path / "zygote.log"
    zygote = processes.ZygoteProcess(["launchpad", "courier"], log, "127.0.0.1")
    assert select.select([zygote.connection], [], [], 60.0)[0]  # It is ready, and nobody reads it.
    zygote.connection.close()
    assert zygote.process.wait(60.0) == 0
    assert log.read_text() == ""


def test_a_gang_is_replaced_as_a_whole(tmp_path):
    settings = dataclasses.replace(QUICK, gang="band")
    with Program(tmp_path, "processes", works, works, works, settings=settings) as program:
        program.until(lambda: all(program.up(i) for i in range(3)))
        first = [member.handle.pid for member in program.members]
        os.kill(first[1], signal.SIGKILL)
        program.until(lambda: program.members[0].handle is None)
        program.until(lambda: all(m.handle and m.handle.pid for m in program.members))
        second = [member.handle.pid for member in program.members]
        program.until(lambda: all(program.up(i) for i in range(3)))
        assert not set(first) & set(second)
        assert not [pid for pid in first if pathlib.Path(f"/proc/{pid}").exists()]
    (said,) = program.said
    assert said.startswith("role/1 failed: killed by SIGKILL; the 3 of its gang are started again")


def test_a_hanging_loop_is_replaced_and_then_ends_the_run(tmp_path):
    with Program(tmp_path, "processes", hangs) as program:
        with pytest.raises(RoleError, match=r"role/0 failed: hangs: no step for 2 s \(failure 2"):
            program.until(lambda: False)
        assert len(program.said) == 1


@pytest.mark.parametrize("kind", ["processes", "threads"])
def test_a_role_that_keeps_failing_ends_the_run_with_its_reason(tmp_path, kind):
    with (
        Program(tmp_path, kind, fails) as program,
        pytest.raises(RoleError, match="role/0 failed: OSError: no such luck"),
    ):
        program.until(lambda: False)
    assert "Traceback" in (tmp_path / "role-0.log").read_text()


@pytest.mark.parametrize("kind", ["processes", "threads"])
def test_what_cannot_be_is_not_tried_again(tmp_path, kind):
    with Program(tmp_path, kind, cannot) as program:
        with pytest.raises(RoleError, match="the impossible"):
            program.until(lambda: False)
        assert program.said == []


@pytest.mark.parametrize("kind", ["processes", "threads"])
def test_a_role_may_end_by_itself(tmp_path, kind):
    with Program(tmp_path, kind, ends, works) as program:
        program.until(lambda: program.members[0].finished and program.up(1))
        assert program.said == []
    assert not program.members[1].handle.running


def test_a_hanging_thread_ends_the_run(tmp_path):
    with (
        Program(tmp_path, "threads", hangs) as program,
        pytest.raises(RoleError, match="a thread cannot be restarted"),
    ):
        program.until(lambda: False)


@pytest.mark.parametrize("reverb", [False, True])
def test_only_roles_that_need_it_have_tensorflow(tmp_path, reverb):
    said = tmp_path / "modules"
    settings = Settings(reverb=reverb)
    task = functools.partial(imports, str(said))
    with Program(tmp_path, "processes", task, settings=settings) as program:
        program.until(lambda: program.members[0].finished)
    assert said.read_text() == ("tensorflow reverb jax launchpad" if reverb else "jax launchpad")


def test_a_sign_of_life_is_never_read_by_halves(tmp_path):
    board = heartbeat.Board(tmp_path / "board", 2)
    code = """
import pathlib, sys
from troupe.launch.distributed.supervision import heartbeat
board = heartbeat.Board(pathlib.Path(sys.argv[1]))
while True:
    for _ in range(1000):
        board.sign(1, heartbeat.LOOP)
"""
    writer = subprocess.Popen([sys.executable, "-c", code, str(board.path)])
    try:
        deadline = time.monotonic() + 60
        while not board.read(1)[1]:
            assert time.monotonic() < deadline
        last = 0.0
        for _ in range(200_000):
            alive, loop = board.read(1)
            assert alive == 0.0
            assert last <= loop <= time.monotonic()
            last = loop
        assert board.read(0) == (0.0, 0.0)
    finally:
        writer.kill()
        writer.wait()


_HEAD = """
import cloudpickle, pathlib, sys
sys.path.insert(0, {tests!r})
import test_supervision as t
cloudpickle.register_pickle_by_value(t)
with t.Program(pathlib.Path({folder!r}), "processes", t.works, t.works) as program:
    program.until(lambda: program.up(0) and program.up(1))
    print(*(member.handle.pid for member in program.members), flush=True)
    program.until(lambda: False)
"""


def test_nothing_outlives_a_supervisor_that_was_killed(tmp_path):
    code = _HEAD.format(tests=str(pathlib.Path(__file__).parent), folder=str(tmp_path))
    head = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    try:
        pids = head.stdout.readline().split()
        assert len(pids) == 2
    finally:
        head.kill()
        head.wait()
        head.stdout.close()
    deadline = time.monotonic() + 10
    while any(pathlib.Path("/proc", pid).exists() for pid in pids):
        assert time.monotonic() < deadline
        time.sleep(0.02)
